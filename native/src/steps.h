/*
 * Labelled steps of a frame's and a lease's life: where another process can see what this one was
 * about to do if it dies or stops here. Nothing in the product. Built with MCPD_TEST_STEPS, each calls
 * a function of the test's, which may kill or stop the process (tests/support/steps.c).
 */
#ifndef MCPD_STEPS_H
#define MCPD_STEPS_H

#ifdef MCPD_TEST_STEPS
void mcpd_test_step(const char *label);
#define MCPD_STEP(label) mcpd_test_step(label)
#else
#define MCPD_STEP(label) ((void)0)
#endif

#endif
