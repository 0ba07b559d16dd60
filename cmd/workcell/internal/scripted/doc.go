// Package scripted is a Genkit model provider for recorded answers. Examples and tests use it like a vendor's model,
// without requests to a real model. The models are named "scripted/<agent>", for example "scripted/test-runner", to
// prevent users from mistaking their answers for answers of a real model.
//
// A script is a YAML file. Each agent has a list of invocations, one per run of the agent. An invocation is a list of
// turns, one per answer of the model:
//
//	agents:
//	  test-runner:
//	    - - tool: sandbox_exec
//	        input: {command: "python -m unittest -v"}
//	      - expect: last.status == "completed"
//	        json: {all_passed: "${ last.exit_code == 0 }"}
//
// A turn has these fields:
//
//   - tool and input: one tool call. Or calls: a list of parallel tool calls.
//   - text or json: the answer. A turn without a tool call is the last turn. A tool call may have text too.
//   - expect: one or more CEL expressions, which must be true before the turn is played. If a recorded answer
//     no longer matches the real results, the model returns an error instead of the answer.
//
// "${ expression }" in strings of input, text, and json is a CEL expression. It can use last (output of the last tool
// call of this invocation, null before the first call), outputs (all outputs, in order), input (the agent's input), and
// prompt (text of the user's message). If a string consists of one expression, the result keeps the expression's type.
// Therefore, the agent reports the real results from the sandbox instead of recorded results.
//
// An invocation may also be a mapping with when, a condition over input and prompt, and turns. An agent plays the first
// unplayed invocation in the same workflow run whose condition is true. This separates parallel calls of one agent.
// Each workflow run plays the script from the beginning.
package scripted
