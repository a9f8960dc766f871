package schedulestore

// Statements, to be explained.
const (
	DueSQL    = dueSQL
	WakeSQL   = wakeSQL
	ListSQL   = listSQL
	RecordSQL = recordSQL
)

// RecordArgs are the arguments of RecordSQL.
func RecordArgs(outcomes []Outcome) []any { return recordArgs(outcomes) }
