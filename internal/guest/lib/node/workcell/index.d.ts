export interface CallOptions {
  /** Keeps the result in this file below /workspace and resolves to Saved. */
  save?: string;
  /** Seconds. */
  timeout?: number;
  /** Gets the files that came beside the result. */
  files?: Saved[];
}

export type Tool = (args?: Record<string, unknown>, options?: CallOptions) => Promise<any>;

/** Tools by server and name; call takes "server.tool". */
export const tools: {
  call(name: string, args?: Record<string, unknown>, options?: CallOptions): Promise<any>;
} & Record<string, Record<string, Tool>>;

/** Leaves value as the result of the run, at most 64 KiB of JSON. */
export function result(value: unknown): void;

export class ToolError extends Error {
  code: string;
  remediation: string;
  retryable: boolean;
  /** The connection broke: the tool may have done its work or not. */
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
