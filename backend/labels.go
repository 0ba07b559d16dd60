package backend

// LabelPrefix begins every label that Workcell writes. Users may not set labels below it.
const LabelPrefix = "dev.workcell."

// Labels on every container and volume that Workcell makes.
const (
	LabelInstance = LabelPrefix + "instance" // owning installation
	LabelID       = LabelPrefix + "id"       // session id
	LabelKey      = LabelPrefix + "key"      // session key, text form
	LabelRun      = LabelPrefix + "run"      // owning run
	LabelSpec     = LabelPrefix + "spec"     // Spec.Hash
	LabelCreated  = LabelPrefix + "created"  // RFC 3339 with nanoseconds, UTC
	LabelGuest    = LabelPrefix + "guest"    // version of the guest inside
	LabelRole     = LabelPrefix + "role"     // what the object is for, see Role constants
	LabelRecipe   = LabelPrefix + "recipe"   // Spec.Environment
	LabelImage    = LabelPrefix + "image"    // reference of the image that an environment belongs to
)

// Values of LabelRole.
const (
	RoleSandbox   = "sandbox"   // a sandbox's container
	RoleWorkspace = "workspace" // a sandbox's workspace volume
	RoleGuest     = "guest"     // holds the guest binary, shared by all sandboxes of one guest version
	RoleInit      = "init"      // prepares a volume or a network and is removed at once
	RoleNetwork   = "network"   // the network of bridged sandboxes, shared by all of an engine

	RoleEnvironment = "environment" // what was installed for sandboxes
)
