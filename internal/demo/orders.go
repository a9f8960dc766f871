package demo

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
)

// Order is the context of an instance: what is ordered at first, and what became of it at the end.
type Order struct {
	Number   string   `json:"number,omitempty"`
	Customer Customer `json:"customer"`
	Lines    []Line   `json:"lines"`
	// Card is how it is paid; some are declined at first, see [card].
	Card string `json:"card,omitempty"`
	// SubtotalCents is what validate finds the lines to cost, before discounts and tax.
	SubtotalCents int64     `json:"subtotal_cents,omitempty"`
	Payment       *Payment  `json:"payment,omitempty"`
	Shipment      *Shipment `json:"shipment,omitempty"`
	TotalCents    int64     `json:"total_cents,omitempty"`
}

// Customer is who ordered.
type Customer struct {
	Name  string `json:"name"`
	Email string `json:"email,omitempty"`
	City  string `json:"city,omitempty"`
}

// Line is so many of one article. Prices are in cents.
type Line struct {
	SKU           string `json:"sku"`
	Name          string `json:"name,omitempty"`
	Quantity      int64  `json:"quantity"`
	UnitCents     int64  `json:"unit_cents,omitempty"`
	DiscountCents int64  `json:"discount_cents,omitempty"`
	TaxCents      int64  `json:"tax_cents,omitempty"`
	TotalCents    int64  `json:"total_cents,omitempty"`
}

// Payment is what the branch of the same name brings.
type Payment struct {
	Authorisation string `json:"authorisation"`
	AmountCents   int64  `json:"amount_cents"`
	Attempts      int    `json:"attempts"`
	Captured      bool   `json:"captured"`
}

// Shipment is what the branch shipping brings.
type Shipment struct {
	Warehouse string `json:"warehouse"`
	Parcels   int    `json:"parcels"`
	Tracking  string `json:"tracking,omitempty"`
}

// article is something that the shop sells.
type article struct {
	sku, name string
	cents     int64
	taxBasis  int64 // in hundredths of a percent
	soldOut   bool
}

const (
	reducedTax  = 700
	standardTax = 1900
)

// catalogue is what the shop sells, what is sold out last.
var catalogue = []article{
	{sku: "tea", name: "Assam, 250 g", cents: 890, taxBasis: reducedTax},
	{sku: "coffee", name: "Espresso beans, 1 kg", cents: 2190, taxBasis: reducedTax},
	{sku: "chocolate", name: "Dark chocolate, 72 %", cents: 349, taxBasis: reducedTax},
	{sku: "honey", name: "Lime blossom honey", cents: 745, taxBasis: reducedTax},
	{sku: "notebook", name: "Notebook, dotted", cents: 1290, taxBasis: reducedTax},
	{sku: "pen", name: "Fountain pen", cents: 3495, taxBasis: standardTax},
	{sku: "mug", name: "Stoneware mug", cents: 1650, taxBasis: standardTax},
	{sku: "kettle", name: "Gooseneck kettle", cents: 6900, taxBasis: standardTax},
	{sku: "grinder", name: "Hand grinder", cents: 11900, taxBasis: standardTax},
	{sku: "scale", name: "Brewing scale", cents: 4450, taxBasis: standardTax},
	{sku: "blanket", name: "Wool blanket", cents: 8900, taxBasis: standardTax},
	{sku: "lamp", name: "Reading lamp", cents: 12950, taxBasis: standardTax},
	{sku: "teapot", name: "Cast-iron teapot", cents: 7490, taxBasis: standardTax, soldOut: true},
	{sku: "samovar", name: "Samovar, 5 l", cents: 39900, taxBasis: standardTax, soldOut: true},
}

// soldOutArticles is how many of the catalogue's last are sold out.
const soldOutArticles = 2

func findArticle(sku string) (article, bool) {
	i := slices.IndexFunc(catalogue, func(a article) bool { return a.sku == sku })
	if i < 0 {
		return article{}, false
	}
	return catalogue[i], true
}

const (
	maxLines    = 8
	maxQuantity = 5
	// maxDeclines is how often the most stubborn card is declined before it is taken.
	maxDeclines = 2

	// One order in so many asks for something that is sold out, and is paid by a card that is declined at first.
	soldOutOneIn = 20
	declineOneIn = 10
)

const (
	cardGood = "visa"
	// cardDeclined is followed by how often the card is declined.
	cardDeclined = "declined-"
)

var (
	firstNames = []string{
		"Ada", "Alan", "Barbara", "Claude", "Donald", "Edsger", "Frances", "Grace", "Hedy", "Ivan", "Jean", "Katherine",
		"Leslie", "Margaret", "Niklaus", "Radia", "Shafi", "Tony", "Ursula", "Zoë",
	}
	lastNames = []string{
		"Allen", "Bartik", "Dijkstra", "Franklin", "Goldwasser", "Hamilton", "Hoare", "Hopper", "Johnson", "Knuth", "Lamarr",
		"Lamport", "Liskov", "Lovelace", "Perlman", "Shannon", "Sutherland", "Turing", "Wirth", "Çelik",
	}
	cities = []string{"Bergen", "Dublin", "Ghent", "Kraków", "Leipzig", "Lyon", "Malmö", "Porto", "Tartu", "Trieste", "Utrecht", "Vigo"}
)

// NewOrders makes n orders, the same for the same seed.
func NewOrders(n int, seed uint64) []Order {
	random := rand.New(rand.NewPCG(seed, 0x7769_6767_6c65)) //nolint:gosec // sample data
	orders := make([]Order, n)
	for i := range orders {
		orders[i] = newOrder(random, i)
	}
	return orders
}

func newOrder(random *rand.Rand, i int) Order {
	first, last := pick(random, firstNames), pick(random, lastNames)
	o := Order{
		Number: fmt.Sprintf("W-%06d", i+1),
		Customer: Customer{
			Name: first + " " + last, Email: strings.ToLower(first) + "." + strings.ToLower(last) + "@example.com",
			City: pick(random, cities),
		},
		Card: cardGood,
	}
	// Distinct articles in a random order, most orders short.
	count := 1 + min(random.IntN(maxLines), random.IntN(maxLines))
	inStock := len(catalogue) - soldOutArticles
	for _, a := range random.Perm(inStock)[:count] {
		o.Lines = append(o.Lines, Line{SKU: catalogue[a].sku, Quantity: 1 + random.Int64N(maxQuantity)})
	}
	if random.IntN(soldOutOneIn) == 0 {
		o.Lines[random.IntN(count)].SKU = catalogue[inStock+random.IntN(soldOutArticles)].sku
	}
	if random.IntN(declineOneIn) == 0 {
		o.Card = fmt.Sprintf("%s%d", cardDeclined, 1+random.IntN(maxDeclines))
	}
	return o
}

func pick(random *rand.Rand, from []string) string { return from[random.IntN(len(from))] }
