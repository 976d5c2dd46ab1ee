/* Weights of other people's files in the program's own modules.  Included by <kiln/train.h>.
 *
 *     // PyTorch's names and layouts: linear weights are [out, in] there and [in, out] here
 *     static kl_status name(void *ctx, const kl_file_entry *entry, int64_t part, kl_weight_map *map)
 *     {
 *         map->transpose = entry->rank == 2 && strstr(entry->name, "_proj.");
 *         return KL_OK;
 *     }
 *     ...
 *     kl_params_load(params, "model.safetensors.index.json", &(kl_params_load_options){.map = name});
 *
 * A parameter whose elements are in the file as the parameter has them, all of them or whole rows of a tensor, is not
 * copied: its value is the file's mapping (<kiln/formats/file.h>), until it is assigned.  So the file must not be
 * modified while the tree has such values. */
#ifndef KILN_WEIGHTS_H
#define KILN_WEIGHTS_H
#include <kiln/formats/file.h>
#include <kiln/train/params.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Where elements of a tensor of the file go. */
typedef struct kl_weight_map {
    char name[KL_PARAM_NAME + 2]; /* the parameter or buffer; "": they are not wanted.  At first the tensor's name */
    bool transpose;               /* the last two axes are exchanged first */
    int axis;                     /* then, where `length` is not 0: */
    int64_t start, length;        /*   only the elements from start on, so many, of this axis */
    int64_t at;                   /* they are the parameter's elements from `at` on of its axis `axis` */
    bool more;                    /* the function is called again, for the tensor's next part */
} kl_weight_map;
/* Says where part 0, 1, .. of a tensor goes, in a map of zeros but for the name.  Parts of several tensors may make one
 * parameter, all along one axis.  A status other than KL_OK ends loading, with that status. */
typedef kl_status kl_weight_map_fn(void *ctx, const kl_file_entry *entry, int64_t part, kl_weight_map *map);

typedef struct kl_params_load_options {
    kl_weight_map_fn *map;   /* NULL: each tensor is the parameter of its name */
    void *ctx;               /* of both functions */
    bool allow_missing;      /* what the file has nothing for keeps its value; else it is an error */
    bool allow_unexpected;   /* what is not in the tree is left out; else it is an error */
    void (*problem)(void *ctx, const char *text); /* called with each reason why the file does not fit */
} kl_params_load_options;

/* Gives all parameters and buffers of the tree values from a file: safetensors, GGUF, an index of several safetensors
 * files, or NumPy's.  Floats are cast to the parameter's dtype; quantized tensors are decoded, unless a buffer is
 * quantized in the same way; other dtypes have to be equal.  Nothing is assigned if anything does not fit: the error
 * lists all that does not, as far as a message goes.  Outside of traces.
 * [errors ARGUMENT; IO: the file, or it lacks something, has something else, or has something of another shape; TYPE;
 * TRACE: one is open; MEMORY; those of the map function] */
KL_API_AT kl_status kl_params_load(kl_params *params, const char *path, const kl_params_load_options *options);
/* The same from an open file, which may then be closed. */
KL_API_AT kl_status kl_params_load_file(kl_params *params, kl_file *file, const kl_params_load_options *options);

#ifdef __cplusplus
}
#endif
#include <kiln/call_sites/formats/weights.h> /* made from the prototypes marked KL_API_AT */
#endif
