package definition

// nearest suggests known names for mistyped ones. It stops suggesting when it
// has compared enough, so that a definition of nothing but unknown names costs
// no more than another.
type nearest struct {
	names  []string
	budget int
}

const (
	// nearestBudget bounds the comparisons for one definition, in characters.
	nearestBudget = 4 << 20
	// maxDistance is how many edits apart a suggestion may be.
	maxDistance = 3
)

func newNearest(names []string) nearest {
	return nearest{names: names, budget: nearestBudget}
}

// hint is `; did you mean "x"?` for the known name nearest to s, or "".
func (n *nearest) hint(s string) string {
	best, distance := "", min(maxDistance, len(s)/2)+1
	for _, name := range n.names {
		if n.budget <= 0 {
			break
		}
		n.budget--
		if max(len(name)-len(s), len(s)-len(name)) >= distance || len(s) > maxName {
			continue
		}
		n.budget -= len(s) * (2*maxDistance + 1)
		if d := editDistance(s, name, distance); d < distance {
			best, distance = name, d
		}
	}
	if best == "" {
		return ""
	}
	return "; did you mean " + quote(best) + "?"
}

// editDistance is the Levenshtein distance of a and b in bytes, or limit when it
// is that or more. It looks only at the diagonal band where less is possible.
func editDistance(a, b string, limit int) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = min(j, limit)
	}
	for i := 1; i <= len(a); i++ {
		from, to := max(1, i-limit), min(len(b), i+limit)
		diagonal := row[from-1]
		if from == 1 {
			row[0] = min(i, limit)
		} else {
			row[from-1] = limit
		}
		least := row[from-1]
		for j := from; j <= to; j++ {
			cost := diagonal
			if a[i-1] != b[j-1] {
				cost = 1 + min(diagonal, row[j], row[j-1])
			}
			diagonal, row[j] = row[j], min(cost, limit)
			least = min(least, row[j])
		}
		if to < len(b) {
			row[to+1] = limit
		}
		if least >= limit {
			return limit
		}
	}
	return row[len(b)]
}
