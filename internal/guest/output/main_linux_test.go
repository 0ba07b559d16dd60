package output

import (
	"testing"

	"github.com/workcell-dev/workcell/internal/checktest"
	"github.com/workcell-dev/workcell/internal/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

var must = checktest.Must
