import type { ErrorBody } from '../generated/server';

/** Why the server did not do what it was asked, in its own words. */
export class ServerError extends Error {
  constructor(
    /** The status of HTTP; 0 when no answer came. */
    readonly status: number,
    message: string,
    /** What to do about it; may be empty. */
    readonly hint = ''
  ) {
    super(message);
    this.name = 'ServerProblem';
  }

  /** Whether the server has no part of nbmgpu: it is not installed there, or not enabled. */
  get isMissing(): boolean {
    return this.status === 404 && !this.hint;
  }

  /** Read what a refusal says; what did not come from nbmgpu itself has no words of its own. */
  static async of(response: Response): Promise<ServerError> {
    const said: Partial<ErrorBody> = await response.json().catch(() => ({}));
    const words = said.message ?? `${response.status} ${response.statusText}`;
    return new ServerError(response.status, words, said.hint);
  }
}
