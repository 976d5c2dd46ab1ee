/* Linear algebra beside <kiln/ops/linalg.h>, and solvers: differential equations, roots, linear systems by products
 * alone, minima; functions of libkiln-solve.  <kiln/kiln.h> is included with it. */
#ifndef KILN_SOLVE_H
#define KILN_SOLVE_H
#include <kiln/solve/lapack.h>
#include <kiln/solve/matrix.h>
#include <kiln/solve/solvers.h>
#endif
