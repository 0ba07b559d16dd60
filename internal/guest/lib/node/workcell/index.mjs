import workcell from "./index.cjs";

export const {tools, result, Saved, ToolError, ToolDenied, ToolTimeout, ToolUnavailable} = workcell;
export default workcell;
