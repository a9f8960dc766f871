package archtest

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// A Finding is one place that breaks a rule.
type Finding struct {
	Rule    string
	Where   string // file:line, or a package
	What    string
	Because string
}

// String returns the finding as one line that an editor can follow.
func (f Finding) String() string {
	return fmt.Sprintf("%s: %s; %s (%s)", f.Where, f.What, f.Because, f.Rule)
}

// Check applies every rule to the tree and returns what breaks one, by place. Exceptions are taken off, and those that
// took nothing off are findings too.
func Check(tree *Tree) []Finding {
	return apply(check(tree), exceptions)
}

func check(tree *Tree) []Finding {
	var found []Finding
	for _, rule := range importRules {
		found = append(found, checkImports(tree, rule)...)
	}
	for _, p := range tree.packages {
		found = append(found, checkPackageComment(tree, p)...)
		found = append(found, checkPackageName(p)...)
		found = append(found, checkSize(p)...)
		bubbles := bubbles(p)
		for _, f := range p.files {
			if f.generated {
				continue
			}
			if f.test {
				found = append(found, checkSleep(tree, f, bubbles)...)
				continue
			}
			found = append(found, checkInit(tree, f)...)
			if !matchAny(testPackages, p.path) {
				found = append(found, checkState(tree, f)...)
			}
			found = append(found, checkPure(tree, p, f)...)
			if matchAny(documented, p.path) {
				found = append(found, checkDocs(tree, f)...)
			}
		}
	}
	slices.SortStableFunc(found, func(a, b Finding) int {
		return cmp.Or(strings.Compare(a.Where, b.Where), strings.Compare(a.Rule, b.Rule), strings.Compare(a.What, b.What))
	})
	return found
}

// apply takes off what an exception lets through.
func apply(found []Finding, exceptions []exception) []Finding {
	used := make([]bool, len(exceptions))
	found = slices.DeleteFunc(found, func(f Finding) bool {
		for i, e := range exceptions {
			if e.rule == f.Rule && excepted(e.where, f.Where) {
				used[i] = true
				return true
			}
		}
		return false
	})
	for i, e := range exceptions {
		if !used[i] {
			found = append(found, Finding{
				Rule: "exceptions-are-needed", Where: e.where,
				What:    "nothing there breaks " + e.rule,
				Because: "remove the exception: " + e.because,
			})
		}
	}
	return found
}

// excepted reports whether pattern names the file or package of a place.
func excepted(pattern, where string) bool {
	place, _, _ := strings.Cut(where, ".go:")
	if place != where {
		place = "./" + place + ".go"
	}
	return match(pattern, place)
}

// unmatched returns the rules that are about no package of the tree: a renamed folder must not switch a rule off.
func unmatched(tree *Tree) []Finding {
	var found []Finding
	about := func(rule string, patterns []string) {
		for _, pattern := range patterns {
			if !slices.ContainsFunc(tree.packages, func(p *pkg) bool { return match(pattern, p.path) }) {
				found = append(found, Finding{Rule: rule, Where: pattern, What: "no package matches", Because: "correct the rule"})
			}
		}
	}
	for _, rule := range importRules {
		about(rule.name, rule.from)
	}
	for _, rule := range callRules {
		about(rule.name, rule.from)
	}
	about("exported-names-are-documented", documented)
	return found
}
