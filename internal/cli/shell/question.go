package shell

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
)

// answerBytes bounds an answer.
const answerBytes = 4 << 10

// Confirmation is the flag --yes of a command that asks before it destroys something.
type Confirmation struct{ yes bool }

// Add adds the flag to a command.
func (c *Confirmation) Add(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&c.yes, "yes", false, "do it without asking")
}

// Confirm asks whether to go on. Where nobody is there to answer it wants --yes.
func (c *Confirmation) Confirm(s *Shell, cmd *cobra.Command, question string) error {
	if c.yes {
		return nil
	}
	if !s.Interactive() {
		return Usage(cmd, errors.New("this asks first, and nobody is there to answer: say --yes"))
	}
	answer, err := s.Ask(question + " [y/N] ")
	if err != nil {
		return err
	}
	if answer = strings.ToLower(answer); answer != "y" && answer != "yes" {
		return Failed("nothing was done")
	}
	return nil
}

// Ask asks at the terminal and reads a line.
func (s *Shell) Ask(question string) (string, error) {
	_, _ = fmt.Fprint(s.Err(), question)
	line, err := readLine(s.In())
	if err != nil && (line == "" || !errors.Is(err, io.EOF)) {
		return "", fmt.Errorf("read the answer: %w", err)
	}
	return strings.TrimSpace(line), nil
}

// readLine reads a line byte by byte: what follows is for whoever reads next.
func readLine(r io.Reader) (string, error) {
	var line []byte
	for one := make([]byte, 1); len(line) < answerBytes; {
		n, err := r.Read(one)
		if n > 0 && one[0] == '\n' {
			return string(line), nil
		}
		line = append(line, one[:n]...)
		if err != nil {
			return string(line), err
		}
	}
	return string(line), nil
}

// AskSecret asks at the terminal and reads a line that is not shown.
func (s *Shell) AskSecret(question string) (string, error) {
	_, _ = fmt.Fprint(s.Err(), question)
	return s.ReadSecret()
}
