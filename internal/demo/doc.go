// Package demo is the order-fulfilment workflow that `wiggle dev` serves as a sample, and the run of many of its
// instances that `wiggle dev --demo N` measures.
//
// The shop is small but real: orders differ in customer, lines, stock and card, every handler computes something from
// its context, and cards that are declined at first make steps be tried again. [NewOrders] makes the same orders from the
// same seed.
//
//	validate -> in-stock? -no-> end, well: nothing is charged for what is not there
//	               |
//	               +-- payment:  authorise -> capture        --+
//	               +-- shipping: reserve -> sleep -> label   --+-> merge
//	                                                                 |
//	             each line: price-line -> total <--------------------+
//	                                        |
//	                                        +-> notify
package demo
