// Package pages reads pages of documentation as their readers do: the fenced blocks, and the commands in them. Tests run
// what they find, so that a page shows nothing that does not work.
package pages

import (
	"fmt"
	"os"
	"strings"
)

const fence = "```"

// Block is a fenced block of a page.
type Block struct {
	// Language is the word behind the fence.
	Language string
	// Text is what stands within, with the last line's end.
	Text string
	// Before is the line before the fence, where a comment may say how the block is to be taken.
	Before string
	// Line is the fence's number.
	Line int
}

// Read reads the blocks of a page in order.
func Read(path string) ([]Block, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var blocks []Block
	var open *Block
	before := ""
	for i, line := range strings.Split(string(text), "\n") {
		switch {
		case open == nil && strings.HasPrefix(line, fence):
			open = &Block{Language: strings.TrimPrefix(line, fence), Before: before, Line: i + 1}
		case open != nil && line == fence:
			blocks, open = append(blocks, *open), nil
		case open != nil:
			open.Text += line + "\n"
		}
		before = line
	}
	if open != nil {
		return nil, fmt.Errorf("%s: the block that begins in line %d is not closed", path, open.Line)
	}
	return blocks, nil
}

// In returns the texts of the blocks in a language.
func In(blocks []Block, language string) []string {
	var found []string
	for _, b := range blocks {
		if b.Language == language {
			found = append(found, b.Text)
		}
	}
	return found
}

// Commands returns the commands of the blocks in sh that begin with a word, each on one line.
func Commands(blocks []Block, word string) []string {
	var found []string
	for _, text := range In(blocks, "sh") {
		for line := range strings.Lines(strings.ReplaceAll(text, "\\\n", " ")) {
			if strings.HasPrefix(line, word+" ") {
				found = append(found, strings.TrimSuffix(line, "\n"))
			}
		}
	}
	return found
}

// Words takes a command apart as a shell does that knows single quotes and nothing else.
func Words(command string) []string {
	var words []string
	for i, part := range strings.Split(command, "'") {
		if i%2 == 1 {
			words = append(words, part)
			continue
		}
		words = append(words, strings.Fields(part)...)
	}
	return words
}
