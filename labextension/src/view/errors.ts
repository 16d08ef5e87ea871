/** The message of an error for people, with its hint if it has one. */
export function errorText(reason: unknown): string {
  const { message, hint } = reason as { message?: string; hint?: string };
  return [message ?? String(reason), hint].filter(Boolean).join(' ');
}
