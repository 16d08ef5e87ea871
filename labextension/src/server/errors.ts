import type { ErrorBody } from '../generated/server';

/** An error response of the server extension. */
export class ServerError extends Error {
  constructor(
    /** The HTTP status; 0 without a response. */
    readonly status: number,
    message: string,
    /** What to do about it; may be empty. */
    readonly hint = ''
  ) {
    super(message);
    this.name = 'ServerProblem';
  }

  /** Whether the server extension is not installed or not enabled. */
  get isMissing(): boolean {
    return this.status === 404 && !this.hint;
  }

  /** Read an error response; responses that are not from nbmgpu have no message and no hint. */
  static async of(response: Response): Promise<ServerError> {
    const body: Partial<ErrorBody> = await response.json().catch(() => ({}));
    const message = body.message ?? `${response.status} ${response.statusText}`;
    return new ServerError(response.status, message, body.hint);
  }
}
