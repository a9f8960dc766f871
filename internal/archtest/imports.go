package archtest

import (
	"maps"
	"slices"
	"strings"
)

func checkImports(tree *Tree, rule importRule) []Finding {
	var found []Finding
	for _, p := range tree.packages {
		if !matchAny(rule.from, p.path) || matchAny(rule.except, p.path) {
			continue
		}
		if rule.reach {
			found = append(found, checkReach(tree, rule, p)...)
			continue
		}
		for _, f := range p.files {
			if f.test && !rule.tests {
				continue
			}
			for _, imported := range slices.Sorted(maps.Keys(f.imports)) {
				if !rule.permits(p, f, imported) {
					found = append(found, Finding{
						Rule: rule.name, Where: tree.position(f.imports[imported]), What: "imports " + imported, Because: rule.because,
					})
				}
			}
		}
	}
	return found
}

func (r importRule) permits(p *pkg, f *file, imported string) bool {
	if f.test && matchAny(r.inTests, imported) {
		return true
	}
	if matchAny(r.deny, imported) {
		return false
	}
	if r.allow == nil {
		return true
	}
	own := capture(r.from, p.path)
	return slices.ContainsFunc(r.allow, func(pattern string) bool {
		return match(strings.ReplaceAll(pattern, "$1", own), imported)
	})
}

func checkReach(tree *Tree, rule importRule, p *pkg) []Finding {
	var found []Finding
	chains := tree.reached(p)
	for _, imported := range slices.Sorted(maps.Keys(chains)) {
		if matchAny(rule.deny, imported) {
			found = append(found, Finding{
				Rule: rule.name, Where: p.path, What: "reaches " + strings.Join(chains[imported][1:], " -> "), Because: rule.because,
			})
		}
	}
	return found
}
