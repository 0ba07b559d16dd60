// Package scripted is a model provider for Genkit that plays recorded answers: examples and tests run with it as they
// would with a vendor's model, without asking one. Its models are named "scripted/<agent>", so that nobody takes their
// answers for a real model's.
//
// A script is a YAML file. Each agent has a list of invocations, one per run of the agent; an invocation is a list of
// turns, one per answer of the model:
//
//	agents:
//	  test-runner:
//	    - - tool: sandbox_exec
//	        input: {command: "python -m unittest -v"}
//	      - expect: last.status == "completed"
//	        json: {all_passed: "${ last.exit_code == 0 }"}
//
// A turn has
//
//   - tool and input: one tool call, or calls: a list of them that run in parallel;
//   - text or json: the answer. A turn without a tool call is the last one. Text may also go with a call;
//   - expect: one or more CEL expressions that must hold before the turn is played. A recorded answer that no longer
//     fits what really happened is an error, not an answer.
//
// "${ expression }" in strings of input, text and json is CEL over last (output of the last tool call of this
// invocation, null before the first), outputs (all of them, in order), input (the agent's input) and prompt (text of
// the user's message). A string that is one expression takes the expression's type. So what an agent reports comes
// from what happened in the sandbox, not from the recording.
//
// An invocation may also be a mapping with when, a condition over input and prompt, and turns. An agent takes the first
// invocation that was not taken yet in the same run of a workflow and whose when holds, which keeps parallel calls of
// one agent apart. Each run of a workflow plays the script from its beginning.
package scripted
