// The client of nbmgpu's Jupyter server extension.
export { ServerError } from './errors';
export { RunsServer, type ServerConnectionState } from './runs';
export { ServerRunSource, type ISourceEvents } from './source';
export { Stream, type IStreamListener, type StreamState } from './stream';
