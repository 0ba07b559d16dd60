export interface CallOptions {
  /** Saves the result to this file below /workspace and resolves to Saved. */
  save?: string;
  /** Seconds. */
  timeout?: number;
  /** List to which the result's files are added. */
  files?: Saved[];
}

export type Tool = (args?: Record<string, unknown>, options?: CallOptions) => Promise<any>;

/** Tools by server and name; call takes "server.tool". */
export const tools: {
  call(name: string, args?: Record<string, unknown>, options?: CallOptions): Promise<any>;
} & Record<string, Record<string, Tool>>;

/** Sets the result of the run, at most 64 KiB of JSON. */
export function result(value: unknown): void;

export class ToolError extends Error {
  code: string;
  remediation: string;
  retryable: boolean;
  /** The connection broke, and the tool may or may not have run. */
  outcomeUnknown: boolean;
}
export class ToolDenied extends ToolError {}
export class ToolTimeout extends ToolError {}
export class ToolUnavailable extends ToolError {}

export class Saved {
  path: string;
  bytes: number;
  kind: string;
  length?: number;
  keys: string[];
  head: string;
  load(): Promise<any>;
}
