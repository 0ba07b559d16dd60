package telemetry

import "go.opentelemetry.io/otel/attribute"

// Spans of package workflow.
const (
	SpanWorkflowRun  = "workflow.run"
	SpanWorkflowStep = "workflow.step" // one attempt of one step
)

// Attribute keys of package workflow; KeyRunID is on both spans.
const (
	KeyWorkflowID = attribute.Key("workcell.workflow.id")
	KeyStepID     = attribute.Key("workcell.step.id")
	KeyStepPath   = attribute.Key("workcell.step.path") // with the branches and items the step is part of
	KeyStepType   = attribute.Key("workcell.step.type")
	KeyVisit      = attribute.Key("workcell.step.visit")   // from 1; more than 1 in a loop
	KeyAttempt    = attribute.Key("workcell.step.attempt") // from 1; more than 1 after a failure
	KeyOutcome    = attribute.Key("workcell.outcome")
	KeySteps      = attribute.Key("workcell.run.steps") // attempts of steps of the whole run
)
