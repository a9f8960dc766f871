// Package spelling says how alike two words are, for those who tell a user which known name a misspelt one was meant to
// be. It is pure. (Package proto/definition has a measure of its own: it bounds the work for hostile definitions.)
package spelling

// Distance counts the bytes to insert, drop, or replace to get from a to b (Levenshtein 1966). It takes time in proportion
// to the product of their lengths: bound what comes from outside.
func Distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := 1
			if a[i] == b[j] {
				cost = 0
			}
			diagonal, row[j+1] = row[j+1], min(diagonal+cost, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
