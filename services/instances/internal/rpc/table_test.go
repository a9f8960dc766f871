package rpc_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"strings"
	"testing"

	"github.com/wiggle-run/wiggle/proto/gen/wiggle/v1/wigglev1connect"
	"github.com/wiggle-run/wiggle/proto/gen/wiggleinternal/v1/wiggleinternalv1connect"
	"github.com/wiggle-run/wiggle/services/instances/internal/reads"
)

// handlers reads the code of the handlers, by name.
func handlers(t *testing.T) map[string]*ast.FuncDecl {
	t.Helper()
	found := map[string]*ast.FuncDecl{}
	notTests := func(info fs.FileInfo) bool { return !strings.HasSuffix(info.Name(), "_test.go") }
	packages, err := parser.ParseDir(token.NewFileSet(), ".", notTests, 0) //nolint:staticcheck // one package without build tags
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range packages {
		for _, file := range p.Files {
			for _, decl := range file.Decls {
				if fn, ok := decl.(*ast.FuncDecl); ok {
					found[fn.Name.Name] = fn
				}
			}
		}
	}
	return found
}

// names lists the names that are selected in a function: x.Name.
func names(fn *ast.FuncDecl) map[string]bool {
	found := map[string]bool{}
	ast.Inspect(fn, func(n ast.Node) bool {
		if sel, ok := n.(*ast.SelectorExpr); ok {
			found[sel.Sel.Name] = true
		}
		return true
	})
	return found
}

// TestReadsAskTheTable holds the handlers to the table of freshness (REP-4): nobody reads the store directly, and whoever
// reads asks for his own procedure.
func TestReadsAskTheTable(t *testing.T) {
	t.Parallel()
	all := handlers(t)
	for name, fn := range all {
		if names(fn)["Store"] && name != "RegisterDefinition" { // which writes
			t.Errorf("%s takes the store: read through read, which asks the table", name)
		}
	}
	for _, procedure := range []string{
		wigglev1connect.InstanceServiceGetInstanceProcedure, wigglev1connect.InstanceServiceGetInstancesProcedure,
		wigglev1connect.InstanceServiceGetHistoryProcedure, wigglev1connect.InstanceServiceListInstancesProcedure,
		wigglev1connect.InstanceServiceCountInstancesProcedure, wigglev1connect.WorkflowServiceGetWorkflowProcedure,
		wigglev1connect.WorkflowServiceListWorkflowsProcedure, wiggleinternalv1connect.ShardServiceListDefinitionsProcedure,
		wiggleinternalv1connect.ScanServiceScanInstancesProcedure,
	} {
		if f, _ := reads.FreshnessOf(procedure); f != reads.Primary && f != reads.Bounded {
			t.Errorf("%s is in the table for %s", procedure, f)
		}
		parts := strings.Split(procedure, "/")
		service, method := parts[1][strings.LastIndex(parts[1], ".")+1:], parts[2]
		if fn := all[method]; fn != nil && fn.Recv != nil && !names(fn)[service+method+"Procedure"] {
			t.Errorf("%s does not read as %s", method, procedure)
		}
	}
}
