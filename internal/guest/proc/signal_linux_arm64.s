#include "textflag.h"

// func returnAtOnce(): a signal handler, called by the kernel.
TEXT ·returnAtOnce(SB), NOSPLIT|NOFRAME, $0
	RET

DATA ·returnAtOncePC(SB)/8, $·returnAtOnce(SB)
GLOBL ·returnAtOncePC(SB), RODATA|NOPTR, $8
