// nbmgpu's part of the Jupyter server, as pages see it.
export { ServerError } from './errors';
export { RunsServer, type ServerConnectionState } from './runs';
export { ServerRunSource, type ISourceEvents } from './source';
export { Stream, type IListener, type StreamState } from './stream';
