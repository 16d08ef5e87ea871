/** What a person should know of an error: what happened and, where that is known, what to do. */
export function errorText(reason: unknown): string {
  const { message, hint } = reason as { message?: string; hint?: string };
  return [message ?? String(reason), hint].filter(Boolean).join(' ');
}
