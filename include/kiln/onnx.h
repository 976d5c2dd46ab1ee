/* ONNX models: reading, calling, writing; functions of libkiln-onnx.  <kiln/kiln.h> is included with it. */
#ifndef KILN_KILN_ONNX_H
#define KILN_KILN_ONNX_H
#include <kiln/formats/model.h>
#endif
