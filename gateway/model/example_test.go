package model_test

import (
	"fmt"
	"log"

	"github.com/workcell-dev/workcell/gateway/model"
)

// Custom prices override the included prices.
func ExampleParsePrices() {
	file := "usd_per_million_tokens:\n  local: {small: {input: 0.1, output: 0.2}}\n"
	mine, err := model.ParsePrices("prices.yaml", []byte(file))
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(model.DefaultPrices().With(mine)["local"]["small"].Output)
	// Output: 0.2
}
