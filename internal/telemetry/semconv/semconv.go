// Package semconv has the names of OpenTelemetry's conventions used by Workcell and otelgenai: those for generative AI
// and MCP in their release Release, and the core ones for processes and containers.
package semconv

import "go.opentelemetry.io/otel/attribute"

// Release is the release of open-telemetry/semantic-conventions-genai.
const Release = "v0.1.0"

// Attribute keys.
const (
	OperationName  = attribute.Key("gen_ai.operation.name")
	ProviderName   = attribute.Key("gen_ai.provider.name")
	RequestModel   = attribute.Key("gen_ai.request.model")
	FinishReasons  = attribute.Key("gen_ai.response.finish_reasons")
	InputTokens    = attribute.Key("gen_ai.usage.input_tokens")
	OutputTokens   = attribute.Key("gen_ai.usage.output_tokens")
	CachedTokens   = attribute.Key("gen_ai.usage.cache_read.input_tokens")
	ThinkingTokens = attribute.Key("gen_ai.usage.reasoning.output_tokens")
	InputMessages  = attribute.Key("gen_ai.input.messages")
	OutputMessages = attribute.Key("gen_ai.output.messages")
	ToolName       = attribute.Key("gen_ai.tool.name")
	ToolType       = attribute.Key("gen_ai.tool.type")
	ToolCallID     = attribute.Key("gen_ai.tool.call.id")
	ToolArguments  = attribute.Key("gen_ai.tool.call.arguments")
	ToolResult     = attribute.Key("gen_ai.tool.call.result")
	AgentName      = attribute.Key("gen_ai.agent.name")
	ConversationID = attribute.Key("gen_ai.conversation.id")
	Modality       = attribute.Key("gen_ai.token.modality") // of metrics

	MCPMethod        = attribute.Key("mcp.method.name")
	MCPSession       = attribute.Key("mcp.session.id")
	MCPProtocol      = attribute.Key("mcp.protocol.version")
	RequestID        = attribute.Key("jsonrpc.request.id")
	StatusCode       = attribute.Key("rpc.response.status_code")
	NetworkTransport = attribute.Key("network.transport")

	ProcessName     = attribute.Key("process.executable.name") // argv[0] without the directory
	ProcessExitCode = attribute.Key("process.exit.code")

	ContainerID      = attribute.Key("container.id")
	ContainerImage   = attribute.Key("container.image.name")
	ContainerRuntime = attribute.Key("container.runtime.name")

	HTTPStatus    = attribute.Key("http.response.status_code")
	HTTPMethod    = attribute.Key("http.request.method")
	ServerAddress = attribute.Key("server.address")
	ServerPort    = attribute.Key("server.port")

	ErrorType = attribute.Key("error.type")
)

// Values of OperationName.
const (
	Chat           = "chat"
	Embeddings     = "embeddings"
	ExecuteTool    = "execute_tool"
	InvokeAgent    = "invoke_agent"
	InvokeWorkflow = "invoke_workflow"
)

// Metrics of the conventions.
const (
	MetricModelDuration    = "gen_ai.client.inference.duration"
	MetricEmbedderDuration = "gen_ai.client.embeddings.duration"
	MetricInputTokens      = "gen_ai.client.inference.usage.input_tokens"
	MetricOutputTokens     = "gen_ai.client.inference.usage.output_tokens"
	MetricCachedTokens     = "gen_ai.client.inference.usage.cache_read.input_tokens"
	MetricThinkingTokens   = "gen_ai.client.inference.usage.reasoning.output_tokens"
	MetricCallInput        = "gen_ai.client.inference.operation.input_tokens"
	MetricCallOutput       = "gen_ai.client.inference.operation.output_tokens"
	MetricToolDuration     = "gen_ai.execute_tool.duration"
	MetricAgentDuration    = "gen_ai.invoke_agent.duration"
	MetricInferenceCalls   = "gen_ai.invoke_agent.inference_calls"
	MetricToolCalls        = "gen_ai.invoke_agent.tool_calls"
	MetricMCPOperation     = "mcp.server.operation.duration"
	MetricMCPSession       = "mcp.server.session.duration"
)

// Names of the conventions at commit cb10b70c15c0, which Release replaced.
const (
	OldWorkflowName     = attribute.Key("gen_ai.workflow.name")
	OldTokenType        = attribute.Key("gen_ai.token.type") // of metrics: input or output
	OldTokens           = "gen_ai.client.token.usage"
	OldModelDuration    = "gen_ai.client.operation.duration"
	OldWorkflowDuration = "gen_ai.invoke_workflow.duration"
)

// DurationBuckets returns the boundaries, in seconds, specified by the conventions for histograms of durations.
func DurationBuckets() []float64 {
	return []float64{0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92}
}

// Provider returns the conventions' name for the provider behind a Genkit plugin, for example "gcp.gemini" for
// googleai.
func Provider(plugin string) string {
	switch plugin {
	case "googleai":
		return "gcp.gemini"
	case "vertexai":
		return "gcp.vertex_ai"
	case "bedrock", "amazon-bedrock":
		return "aws.bedrock"
	case "azureopenai", "azure-openai":
		return "azure.ai.openai"
	case "mistral":
		return "mistral_ai"
	case "xai":
		return "x_ai"
	}
	return plugin // openai, anthropic, deepseek, ollama, and others have the same name
}
