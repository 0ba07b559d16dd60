package interpreter

import (
	"os"
	"testing"

	"github.com/workcell-dev/workcell/e2e/enginetest"
)

func TestMain(m *testing.M) { os.Exit(enginetest.Tests{M: m}.Run()) }
