package bench

import (
	"cmp"
	"math"
	"slices"
	"time"
)

// percentile is the nearest rank: the least of the values that so many percent of them do not exceed. values are sorted.
func percentile[T any](values []T, percent float64) T {
	if len(values) == 0 {
		var zero T
		return zero
	}
	rank := int(math.Ceil(float64(len(values)) * percent / 100))
	return values[min(max(rank, 1), len(values))-1]
}

// quantiles are the percentiles that are told of a distribution.
type quantiles struct{ p50, p95, p99 time.Duration }

// quantilesOf sorts the values.
func quantilesOf(values []time.Duration) quantiles {
	slices.Sort(values)
	return quantiles{percentile(values, 50), percentile(values, 95), percentile(values, 99)}
}

// median is the value in the middle, the lower one of two. It sorts the values.
func median[T cmp.Ordered](values []T) T {
	slices.Sort(values)
	return percentile(values, 50)
}

// millis has microseconds as decimals: more would only look exact.
func millis(d time.Duration) float64 { return round(float64(d)/float64(time.Millisecond), 3) }

func round(value float64, decimals int) float64 {
	if math.IsNaN(value) || math.IsInf(value, 0) {
		return 0
	}
	factor := math.Pow10(decimals)
	return math.Round(value*factor) / factor
}
