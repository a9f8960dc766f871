package eventstore

// Statement is a statement for the test of plans.
type Statement struct {
	SQL string
	// Params is how many parameters it has, Scans how often it goes to the log by its key.
	Params, Scans int
}

// Statements are those that go to the log.
func Statements() map[string]Statement {
	return map[string]Statement{
		"bounds":    {selectBounds, 1, 2},
		"consumers": {selectConsumers, 0, 2},
		"trim":      {trimEvents, 4, 2},
	}
}
