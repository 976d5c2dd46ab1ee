/* Training: parameters, modules, optimizers, data, files, loops; functions of libkiln-train.  <kiln/kiln.h> is included
 * with it. */
#ifndef KILN_TRAIN_H
#define KILN_TRAIN_H
#include <kiln/train/data.h>
#include <kiln/train/loop.h>
#include <kiln/train/modules.h>
#include <kiln/train/optim.h>
#include <kiln/train/parallel.h>
#include <kiln/train/params.h>
#include <kiln/train/tokenizer.h>
#include <kiln/formats/file.h>
#include <kiln/formats/snapshot.h>
#include <kiln/formats/weights.h>
#endif
