package archtest

import (
	"fmt"
	"go/ast"
	"go/token"
	"path"
	"slices"
	"strconv"
	"strings"
)

func checkPackageComment(tree *Tree, p *pkg) []Finding {
	var first *file
	for _, f := range p.files {
		if f.test || f.generated {
			continue
		}
		if first == nil {
			first = f
		}
		if f.syntax.Doc.Text() != "" {
			return nil
		}
	}
	if first == nil {
		return nil
	}
	return []Finding{{
		Rule: "packages-have-comments", Where: tree.position(first.syntax.Package), What: "package " + p.path + " has no comment",
		Because: "a package says what it is for and what it guarantees",
	}}
}

func checkPackageName(p *pkg) []Finding {
	name := path.Base(p.path)
	for _, f := range p.files {
		if slices.Contains(vagueNames, name) || slices.Contains(vagueNames, f.syntax.Name.Name) {
			return []Finding{{
				Rule: "packages-have-telling-names", Where: p.path, What: "is named " + name,
				Because: "a name from the field says what belongs there; this one lets everything in",
			}}
		}
	}
	return nil
}

func checkSize(p *pkg) []Finding {
	var found []Finding
	total := 0
	for _, f := range p.files {
		if f.generated {
			continue
		}
		if !f.test {
			total += f.code
		}
		if f.lines > maxFileLines {
			found = append(found, Finding{
				Rule: "files-are-short", Where: f.path + ":1", What: fmt.Sprintf("has %d lines, more than %d", f.lines, maxFileLines),
				Because: "split it by idea, not by size",
			})
		}
	}
	if total > maxPackageLines && !matchAny(testPackages, p.path) {
		found = append(found, Finding{
			Rule: "packages-are-small", Where: p.path, What: fmt.Sprintf("has %d lines of code, more than %d", total, maxPackageLines),
			Because: "split it by idea, not by size",
		})
	}
	return found
}

func checkInit(tree *Tree, f *file) []Finding {
	var found []Finding
	for _, decl := range f.syntax.Decls {
		if fn, ok := decl.(*ast.FuncDecl); ok && fn.Recv == nil && fn.Name.Name == "init" {
			found = append(found, Finding{
				Rule: "no-init", Where: tree.position(fn.Pos()), What: "declares func init",
				Because: "the wiring of a process is one visible function; importing a package has no effect",
			})
		}
	}
	return found
}

// checkState finds package-level variables of the kinds in stateRules. What a function literal mentions does not count:
// it is not the variable's.
func checkState(tree *Tree, f *file) []Finding {
	var found []Finding
	names := packageNames(f)
	for _, decl := range f.syntax.Decls {
		vars, ok := decl.(*ast.GenDecl)
		if !ok || vars.Tok != token.VAR {
			continue
		}
		ast.Inspect(vars, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.FuncLit, *ast.FuncType:
				return false
			case *ast.SelectorExpr:
				imported, name := selected(names, n)
				if slices.ContainsFunc(stateRules, func(r stateRule) bool {
					return r.pkg == imported && (r.names == nil || slices.Contains(r.names, name))
				}) {
					found = append(found, Finding{
						Rule: "no-package-state", Where: tree.position(n.Pos()),
						What:    "package-level variable with " + imported + "." + name,
						Because: "many services live in one process; state, loggers, meters and registries are handed in",
					})
				}
			}
			return true
		})
	}
	return found
}

func checkPure(tree *Tree, p *pkg, f *file) []Finding {
	var found []Finding
	names := packageNames(f)
	ast.Inspect(f.syntax, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.GoStmt:
			if matchAny(core, p.path) {
				found = append(found, Finding{
					Rule: "core-starts-no-goroutine", Where: tree.position(n.Pos()), What: "starts a goroutine",
					Because: "a pure core is called, and returns",
				})
			}
		case *ast.SelectorExpr:
			imported, name := selected(names, n)
			for _, rule := range callRules {
				if rule.pkg == imported && slices.Contains(rule.funcs, name) && matchAny(rule.from, p.path) {
					found = append(found, Finding{
						Rule: rule.name, Where: tree.position(n.Pos()), What: "uses " + imported + "." + name, Because: rule.because,
					})
				}
			}
		}
		return true
	})
	return found
}

// bubbles returns the names of the test functions of p that run what they are given in a bubble of testing/synctest.
func bubbles(p *pkg) map[string]bool {
	found := map[string]bool{}
	for _, f := range p.files {
		if !f.test {
			continue
		}
		names := packageNames(f)
		for _, decl := range f.syntax.Decls {
			fn, ok := decl.(*ast.FuncDecl)
			if !ok || fn.Recv != nil {
				continue
			}
			ast.Inspect(fn, func(n ast.Node) bool {
				if call, ok := n.(*ast.CallExpr); ok && startsBubble(names, call) {
					found[fn.Name.Name] = true
				}
				return true
			})
		}
	}
	return found
}

// startsBubble reports whether call is to synctest.Test.
func startsBubble(names map[string]string, call *ast.CallExpr) bool {
	fun, ok := call.Fun.(*ast.SelectorExpr)
	if !ok {
		return false
	}
	imported, name := selected(names, fun)
	return imported == "testing/synctest" && name == "Test"
}

// checkSleep finds time.Sleep in a test file where the clock is not the test's. It is in a bubble of testing/synctest:
// in what is written as an argument of a function that runs it in one. Helpers of a package that has bubbles are given
// the benefit of the doubt.
func checkSleep(tree *Tree, f *file, bubbles map[string]bool) []Finding {
	var found []Finding
	names := packageNames(f)
	for _, decl := range f.syntax.Decls {
		fn, ok := decl.(*ast.FuncDecl)
		if ok && len(bubbles) > 0 && (fn.Recv != nil || !isTest(fn.Name.Name)) {
			continue
		}
		ast.Inspect(decl, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.CallExpr:
				fun, ok := n.Fun.(*ast.Ident)
				return !startsBubble(names, n) && (!ok || !bubbles[fun.Name])
			case *ast.SelectorExpr:
				if imported, name := selected(names, n); imported == "time" && name == "Sleep" {
					found = append(found, Finding{
						Rule: "tests-do-not-sleep", Where: tree.position(n.Pos()), What: "uses time.Sleep",
						Because: "a test waits for what it waits for: a hook, an injected clock or testing/synctest",
					})
				}
			}
			return true
		})
	}
	return found
}

// isTest reports whether the go command calls a function of this name.
func isTest(name string) bool {
	return slices.ContainsFunc([]string{"Test", "Benchmark", "Fuzz", "Example"}, func(prefix string) bool {
		return strings.HasPrefix(name, prefix)
	})
}

func checkDocs(tree *Tree, f *file) []Finding {
	if f.syntax.Name.Name == "main" {
		return nil
	}
	var found []Finding
	undocumented := func(name *ast.Ident) {
		found = append(found, Finding{
			Rule: "exported-names-are-documented", Where: tree.position(name.Pos()), What: name.Name + " has no comment",
			Because: "its readers are not its authors: behaviour, units, defaults and errors",
		})
	}
	for _, decl := range f.syntax.Decls {
		switch decl := decl.(type) {
		case *ast.FuncDecl:
			if decl.Doc.Text() == "" && decl.Name.IsExported() && exportedReceiver(decl) {
				undocumented(decl.Name)
			}
		case *ast.GenDecl:
			for _, name := range undocumentedSpecs(decl) {
				undocumented(name)
			}
		}
	}
	return found
}

// undocumentedSpecs returns the exported names of a declaration that neither it nor their line documents. A comment on
// the whole of a group is enough for its constants and variables, but not for its types.
func undocumentedSpecs(decl *ast.GenDecl) []*ast.Ident {
	var names []*ast.Ident
	grouped := decl.Doc.Text() != ""
	for _, spec := range decl.Specs {
		switch spec := spec.(type) {
		case *ast.TypeSpec:
			documented := spec.Doc.Text() != "" || spec.Comment.Text() != "" || (grouped && !decl.Lparen.IsValid())
			if spec.Name.IsExported() && !documented {
				names = append(names, spec.Name)
			}
		case *ast.ValueSpec:
			if grouped || spec.Doc.Text() != "" || spec.Comment.Text() != "" {
				continue
			}
			for _, name := range spec.Names {
				if name.IsExported() {
					names = append(names, name)
				}
			}
		}
	}
	return names
}

// exportedReceiver reports whether fn is a function, or a method of an exported type.
func exportedReceiver(fn *ast.FuncDecl) bool {
	if fn.Recv == nil || len(fn.Recv.List) == 0 {
		return true
	}
	receiver := fn.Recv.List[0].Type
	for {
		switch r := receiver.(type) {
		case *ast.StarExpr:
			receiver = r.X
		case *ast.IndexExpr:
			receiver = r.X
		case *ast.IndexListExpr:
			receiver = r.X
		case *ast.Ident:
			return r.IsExported()
		default:
			return false
		}
	}
}

// packageNames maps the names under which a file refers to packages to import paths. A name that the import does not
// give is guessed from the path: its last segment that is not a major version.
func packageNames(f *file) map[string]string {
	names := map[string]string{}
	for _, spec := range f.syntax.Imports {
		imported, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			continue
		}
		if spec.Name != nil {
			names[spec.Name.Name] = imported
			continue
		}
		name := path.Base(imported)
		if dir := path.Dir(imported); dir != "." && len(name) > 1 && name[0] == 'v' && strings.Trim(name[1:], "0123456789") == "" {
			name = path.Base(dir)
		}
		names[name] = imported
	}
	return names
}

// selected returns the import path and the name that an expression like time.Now refers to, or nothing.
func selected(names map[string]string, sel *ast.SelectorExpr) (importPath, name string) {
	if x, ok := sel.X.(*ast.Ident); ok {
		return names[x.Name], sel.Sel.Name
	}
	return "", ""
}
