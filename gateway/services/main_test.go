package services_test

import (
	"testing"

	"github.com/workcell-dev/workcell/internal/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }
