package definition

// Limits bounds what may be registered (WF-7, WF-8). A limit of 0 does not
// bound, so the zero value checks no limit at all.
type Limits struct {
	// Nodes in one definition. WIGGLE_LIMIT_NODES.
	Nodes int
	// Nesting is how deep fan-outs may stand within each other.
	// WIGGLE_LIMIT_NESTING.
	Nesting int
	// Bytes of a definition in the binary encoding.
	// WIGGLE_LIMIT_DEFINITION_BYTES.
	Bytes int
}

// The settings that hold the limits.
const (
	// SettingNodes is the setting of [Limits.Nodes].
	SettingNodes = "WIGGLE_LIMIT_NODES"
	// SettingNesting is the setting of [Limits.Nesting].
	SettingNesting = "WIGGLE_LIMIT_NESTING"
	// SettingBytes is the setting of [Limits.Bytes].
	SettingBytes = "WIGGLE_LIMIT_DEFINITION_BYTES"
)

// DefaultLimits are the limits of a server that sets none: 10 000 nodes, 64
// levels of nesting, 1 MiB.
func DefaultLimits() Limits {
	return Limits{Nodes: 10_000, Nesting: 64, Bytes: 1 << 20}
}
