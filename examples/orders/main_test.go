package main

import "testing"

// TestRefundOnce verifies that an order is refunded once, however its number is written.
func TestRefundOnce(t *testing.T) {
	s := &shop{refunded: map[string]float64{}}
	o, err := s.order("5")
	if err != nil {
		t.Fatal(err)
	}
	for i, id := range []string{"5", "05", "+5"} {
		if _, _, err := s.refund(t.Context(), nil, refundInput{id, o.Amount}); (err == nil) != (i == 0) {
			t.Errorf("refund of order %s: %v", id, err)
		}
		if o, err := s.order(id); err != nil || o.Refunded != o.Amount {
			t.Errorf("order %s: %+v, %v", id, o, err)
		}
	}
}
