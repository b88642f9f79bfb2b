/* A fault to be found: an unpin that releases nothing. Included before every file, by -include. */
#include "atomics.h"

#undef mcpd_store_release
#define mcpd_store_release(word, value) mcpd_store_relaxed(word, value)
#undef mcpd_store_seq_cst
#define mcpd_store_seq_cst(word, value) mcpd_store_relaxed(word, value)
