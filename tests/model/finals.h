/* Where a run begins, and what must hold when nothing can move any more. */
#ifndef FINALS_H
#define FINALS_H

/* Fills a state that is all zero, but for its memory and threads; lays out the words. */
void model_begin(void);
/* What is wrong with state s, which cannot move; or NULL. */
const char *model_end(void);

#endif
