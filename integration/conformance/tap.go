// Package tap prints results in the Test Anything Protocol. It has the calls that runtime-tools' programs make of the
// package of this name, which Debian does not have.
package tap

import (
	"encoding/json"
	"fmt"
	"strings"
)

// T counts the results of one program.
type T struct {
	results *int
	note    string
}

// New starts with no result.
func New() *T { return &T{results: new(int)} }

// Todo is for results that need not be good yet.
func (t *T) Todo() *T { return &T{results: t.results, note: " # TODO"} }

// Header says how many results will come; 0 leaves that to AutoPlan.
func (t *T) Header(results int) {
	fmt.Println("TAP version 13")
	if results > 0 {
		plan(results)
	}
}

// AutoPlan says how many results there were.
func (t *T) AutoPlan() { plan(*t.results) }

// Ok is a result.
func (t *T) Ok(passed bool, description string) {
	*t.results++
	word := "ok"
	if !passed {
		word = "not ok"
	}
	fmt.Printf("%s %d - %s%s\n", word, *t.results, description, t.note)
}

// Pass is a good result.
func (t *T) Pass(description string) { t.Ok(true, description) }

// Fail is a bad result.
func (t *T) Fail(description string) { t.Ok(false, description) }

// Skip is so many results that were not tried.
func (t *T) Skip(results int, reason string) {
	for ; results > 0; results-- {
		*t.results++
		fmt.Printf("ok %d # SKIP %s\n", *t.results, reason)
	}
}

// Diagnostic says something about the last result.
func (t *T) Diagnostic(text string) { fmt.Println("# " + strings.ReplaceAll(text, "\n", "\n# ")) }

// Diagnosticf is Diagnostic in Printf's words.
func (t *T) Diagnosticf(format string, values ...interface{}) {
	t.Diagnostic(fmt.Sprintf(format, values...))
}

// YAML says something with structure about the last result; JSON is YAML.
func (t *T) YAML(value interface{}) error {
	text, err := json.MarshalIndent(value, "  ", "  ")
	if err == nil {
		fmt.Printf("  ---\n  %s\n  ...\n", text)
	}
	return err
}

func plan(results int) { fmt.Printf("1..%d\n", results) }
