package eventlog

// What tests look at.
const (
	MaxFences   = maxFences
	ReadEntries = readEntries
	NoScans     = noScans
)

// Fences is how much a reader remembers.
func (r *Reader) Fences() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.fences)
}

// Life is what a reader takes for the server's life.
func (r *Reader) Life() int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.life
}
