package archtest

import (
	"regexp"
	"strings"
)

// matchAny reports whether one of the patterns matches path.
func matchAny(patterns []string, path string) bool {
	for _, pattern := range patterns {
		if match(pattern, path) {
			return true
		}
	}
	return false
}

// match reports whether path, as [ours] writes it, matches pattern as rules.go describes it.
func match(pattern, path string) bool {
	switch pattern {
	case "std":
		return isStd(path)
	case "outside":
		return !isStd(path) && !strings.HasPrefix(path, "./")
	}
	return compile(pattern).MatchString(path)
}

// capture returns what the first `*` of the pattern that matches path stands for.
func capture(patterns []string, path string) string {
	for _, pattern := range patterns {
		if groups := compile(pattern).FindStringSubmatch(path); len(groups) > 1 {
			return groups[1]
		}
	}
	return ""
}

func compile(pattern string) *regexp.Regexp {
	expr := regexp.QuoteMeta(pattern)
	if rest, found := strings.CutSuffix(expr, `/\.\.\.`); found {
		expr = rest + `(?:/.*)?`
	}
	expr = strings.ReplaceAll(expr, `\.\.\.`, `.*`)
	expr = strings.ReplaceAll(expr, `\*`, `([^/]*)`)
	return regexp.MustCompile(`^` + expr + `$`)
}

// isStd goes by the rule of the go command: a module's path has a dot in its first segment.
func isStd(path string) bool {
	first, _, _ := strings.Cut(path, "/")
	return !strings.Contains(first, ".")
}
