package backend

// LabelPrefix is the prefix of all Workcell labels. Users must not set labels with this prefix.
const LabelPrefix = "dev.workcell."

// Labels on every container and volume created by Workcell.
const (
	LabelInstance = LabelPrefix + "instance" // owning installation
	LabelID       = LabelPrefix + "id"       // session id
	LabelKey      = LabelPrefix + "key"      // session key, text form
	LabelRun      = LabelPrefix + "run"      // owning run
	LabelSpec     = LabelPrefix + "spec"     // Spec.Hash
	LabelCreated  = LabelPrefix + "created"  // RFC 3339 with nanoseconds, UTC
	LabelGuest    = LabelPrefix + "guest"    // version of the guest agent
	LabelRole     = LabelPrefix + "role"     // purpose of the object, see the Role constants
	LabelRecipe   = LabelPrefix + "recipe"   // Spec.Environment
	LabelImage    = LabelPrefix + "image"    // reference of an environment's image
)

// Values of LabelRole.
const (
	RoleSandbox   = "sandbox"   // a sandbox's container
	RoleWorkspace = "workspace" // a sandbox's workspace volume
	RoleGuest     = "guest"     // object with the guest agent, shared by all sandboxes with the same guest version
	RoleInit      = "init"      // short-lived helper to prepare a volume or a network
	RoleNetwork   = "network"   // network of bridged sandboxes, one per engine

	RoleEnvironment = "environment" // installed packages for sandboxes
)
