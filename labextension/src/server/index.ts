// nbmgpu's part of the Jupyter server, as pages see it.
export { ServerProblem } from './problem';
export { RunsServer, type ServerLink } from './runs';
export { ServerRunSource, type ISourceEvents } from './source';
export { Stream, type IListener, type StreamLink } from './stream';
