/* Variants with a call site, which may be NULL, and macros that pass the caller's.  Included by <kiln/kiln.h>.
 * Made from the other headers by call_sites.awk. */
#include <kiln/kiln.h> /* in front of the guard: it includes this file */
#ifndef KILN_CALL_SITES_H
#define KILN_CALL_SITES_H

#ifdef __cplusplus
extern "C" {
#endif

KL_API kl_status kl_trace_compile_at(const kl_site *site, const char *object_path, const char *header_path,
                                     const kl_compile_options *options);
KL_API kl_object *kl_object_new_at(const kl_site *site, const kl_compile_options *options);
KL_API kl_status kl_object_add_at(const kl_site *site, kl_object *object, const char *prefix);
KL_API kl_status kl_object_write_at(const kl_site *site, kl_object *object, const char *object_path,
                                    const char *header_path);
KL_API kl_tensor kl_inner_at(const kl_site *site, kl_tensor t);
KL_API kl_tensor kl_from_inner_at(const kl_site *site, kl_tensor t);
KL_API kl_gradients *kl_backward_at(const kl_site *site, kl_tensor loss);
KL_API kl_status kl_gradients_replace_at(const kl_site *site, kl_gradients *g, kl_tensor t, kl_tensor gradient);
KL_API kl_status kl_all_reduce_at(const kl_site *site, kl_reduction kind, uint32_t n, const kl_tensor *in,
                                  kl_tensor *out);
KL_API kl_status kl_all_gather_at(const kl_site *site, int axis, uint32_t n, const kl_tensor *in, kl_tensor *out);
KL_API kl_status kl_reduce_scatter_at(const kl_site *site, kl_reduction kind, int axis, uint32_t n,
                                      const kl_tensor *in, kl_tensor *out);
KL_API kl_status kl_broadcast_at(const kl_site *site, kl_tensor a, uint32_t n, const kl_device *device, kl_tensor *out);
KL_API kl_status kl_cond_at(const kl_site *site, kl_tensor condition, kl_region_fn *yes, kl_region_fn *no, void *ctx,
                            int64_t nin, const kl_tensor *in, int64_t nout, kl_tensor *out);
KL_API kl_status kl_while_at(const kl_site *site, kl_region_fn *condition, kl_region_fn *body, void *ctx, int64_t n,
                             const kl_tensor *in, kl_tensor *out);
KL_API kl_status kl_scan_at(const kl_site *site, kl_region_fn *body, void *ctx, int64_t length, int64_t ncarried,
                            const kl_tensor *carried, int64_t nscanned, const kl_tensor *scanned, int64_t nstacked,
                            bool reverse, kl_tensor *out);
KL_API kl_status kl_checkpoint_at(const kl_site *site, kl_region_fn *fn, void *ctx, int64_t nin, const kl_tensor *in,
                                  int64_t nout, kl_tensor *out);
KL_API kl_status kl_custom_grad_at(const kl_site *site, kl_region_fn *fn, kl_region_fn *backward, void *ctx,
                                   int64_t nin, const kl_tensor *in, int64_t nout, kl_tensor *out);
KL_API kl_status kl_custom_at(const kl_site *site, const char *name, const void *attr, size_t attr_bytes, int64_t nin,
                              const kl_tensor *in, int64_t nout, kl_tensor *out);
KL_API kl_tensor kl_random_bits_from_at(const kl_site *site, const kl_generator *g, kl_device device, kl_dtype dtype,
                                        int rank, const int64_t *dims);
KL_API kl_tensor kl_rand_from_at(const kl_site *site, const kl_generator *g, kl_device device, kl_dtype dtype,
                                 int rank, const int64_t *dims);
KL_API kl_tensor kl_randn_from_at(const kl_site *site, const kl_generator *g, kl_device device, kl_dtype dtype,
                                  int rank, const int64_t *dims);
KL_API kl_status kl_dispatch_at(const kl_site *site, const char *op, int64_t nin, const kl_tensor *in, int64_t nout,
                                kl_tensor *out);
KL_API kl_status kl_dispatch_with_at(const kl_site *site, const char *op, kl_keyset keys, int64_t nin,
                                     const kl_tensor *in, int64_t nout, kl_tensor *out);
KL_API kl_status kl_dispatch_direct_at(const kl_site *site, const char *op, kl_key key, int64_t nin,
                                       const kl_tensor *in, int64_t nout, kl_tensor *out);
KL_API kl_memory_hold *kl_memory_of_at(const kl_site *site, kl_tensor tensor, void **address);
KL_API kl_tensor kl_wrap_device_at(const kl_site *site, kl_device device, kl_dtype dtype, int rank,
                                   const int64_t *dims, void *address, void (*release)(void *ctx), void *ctx);
KL_API struct DLManagedTensorVersioned *kl_to_dlpack_at(const kl_site *site, kl_tensor tensor);
KL_API struct DLManagedTensor *kl_to_dlpack_unversioned_at(const kl_site *site, kl_tensor tensor);
KL_API kl_tensor kl_from_dlpack_at(const kl_site *site, struct DLManagedTensorVersioned *tensor);
KL_API kl_tensor kl_from_dlpack_unversioned_at(const kl_site *site, struct DLManagedTensor *tensor);
KL_API kl_file *kl_file_open_at(const kl_site *site, const char *path);
KL_API kl_file *kl_file_open_bytes_at(const kl_site *site, const char *name, const void *bytes, size_t n);
KL_API kl_tensor kl_file_tensor_at(const kl_site *site, kl_file *file, kl_device device, const char *name);
KL_API const void *kl_file_data_at(const kl_site *site, kl_file *file, const char *name);
KL_API kl_status kl_file_write_at(const kl_site *site, const char *path, kl_file_format format, int64_t n,
                                  const kl_file_item *items, int64_t nmeta, const kl_file_pair *meta);
KL_API kl_model *kl_model_open_at(const kl_site *site, kl_device device, const char *path);
KL_API kl_status kl_model_call_at(const kl_site *site, kl_model *model, int64_t nin, const kl_tensor *in, int64_t nout,
                                  kl_tensor *out);
KL_API kl_status kl_model_save_at(const kl_site *site, const char *path, kl_region_fn *fn, void *ctx, int64_t nin,
                                  const kl_tensor *in, const char *const *in_names, int64_t nout,
                                  const char *const *out_names);
KL_API kl_tensor kl_model_read_tensor_at(const kl_site *site, kl_device device, const char *path);
KL_API kl_status kl_snapshot_tensor_at(const kl_site *site, kl_snapshot *snapshot, const char *name, kl_tensor tensor);
KL_API kl_status kl_snapshot_i64_at(const kl_site *site, kl_snapshot *snapshot, const char *name, int64_t *value);
KL_API kl_status kl_snapshot_f64_at(const kl_site *site, kl_snapshot *snapshot, const char *name, double *value);
KL_API kl_status kl_snapshot_number_at(const kl_site *site, kl_snapshot *snapshot, const char *name,
                                       kl_snapshot_get *get, kl_snapshot_set *set, void *of);
KL_API kl_status kl_snapshot_params_at(const kl_site *site, kl_snapshot *snapshot, const kl_params *params);
KL_API kl_status kl_snapshot_optimizer_at(const kl_site *site, kl_snapshot *snapshot, const char *name,
                                          kl_optimizer *opt);
KL_API kl_status kl_snapshot_loader_at(const kl_site *site, kl_snapshot *snapshot, const char *name, kl_loader *loader);
KL_API kl_status kl_snapshot_seeds_at(const kl_site *site, kl_snapshot *snapshot, kl_device device);
KL_API kl_status kl_snapshot_note_at(const kl_site *site, kl_snapshot *snapshot, const char *key, const char *text);
KL_API kl_status kl_snapshot_save_at(const kl_site *site, kl_snapshot *snapshot, const char *path);
KL_API kl_status kl_snapshot_load_at(const kl_site *site, kl_snapshot *snapshot, const char *path);
KL_API kl_status kl_snapshot_save_step_at(const kl_site *site, kl_snapshot *snapshot, const char *folder,
                                          const char *name, int64_t step, int keep);
KL_API kl_status kl_snapshot_load_last_at(const kl_site *site, kl_snapshot *snapshot, const char *folder,
                                          const char *name, int64_t *step);
KL_API kl_status kl_dump_at(const kl_site *site, const char *trace, const char *stage, const char *path);
KL_API kl_status kl_fail_at(const kl_site *site, kl_status code, const char *message);
KL_API kl_status kl_trace_begin_at(const kl_site *site, const char *name);
KL_API kl_status kl_trace_end_at(const kl_site *site);
KL_API kl_status kl_trace_suspend_at(const kl_site *site);
KL_API kl_status kl_trace_resume_at(const kl_site *site);
KL_API kl_tensor kl_keep_at(const kl_site *site, kl_tensor t);
KL_API kl_status kl_assign_at(const kl_site *site, kl_tensor state, kl_tensor value);
KL_API kl_status kl_release_at(const kl_site *site, kl_tensor t);
KL_API kl_status kl_scope_end_at(const kl_site *site);
KL_API kl_status kl_set_name_at(const kl_site *site, kl_tensor t, const char *name);
KL_API kl_status kl_name_begin_at(const kl_site *site, const char *name);
KL_API kl_status kl_name_end_at(const kl_site *site);
KL_API kl_tensor kl_print_at(const kl_site *site, kl_tensor x, const char *label);
KL_API kl_status kl_assert_at(const kl_site *site, kl_tensor condition, const char *message);
KL_API kl_status kl_requires_grad_at(const kl_site *site, kl_tensor t);
KL_API kl_tensor kl_grad_at(const kl_site *site, kl_tensor loss, kl_tensor wrt);
KL_API kl_status kl_grads_at(const kl_site *site, kl_tensor loss, int n, const kl_tensor *wrt, kl_tensor *gradients);
KL_API kl_tensor kl_detach_at(const kl_site *site, kl_tensor t);
KL_API kl_status kl_no_grad_end_at(const kl_site *site);
KL_API kl_status kl_read_at(const kl_site *site, kl_tensor t, void *data, size_t bytes);
KL_API float kl_item_f32_at(const kl_site *site, kl_tensor t);
KL_API double kl_item_f64_at(const kl_site *site, kl_tensor t);
KL_API int64_t kl_item_i64_at(const kl_site *site, kl_tensor t);
KL_API kl_tensor kl_blocked_at(const kl_site *site, kl_tensor a, int64_t block);
KL_API kl_tensor kl_complex_at(const kl_site *site, kl_tensor re, kl_tensor im);
KL_API kl_tensor kl_real_at(const kl_site *site, kl_tensor a);
KL_API kl_tensor kl_imag_at(const kl_site *site, kl_tensor a);
KL_API kl_tensor kl_conj_at(const kl_site *site, kl_tensor a);
KL_API kl_tensor kl_angle_at(const kl_site *site, kl_tensor a);
KL_API kl_tensor kl_named_at(const kl_site *site, kl_tensor a, const char *const *names);
KL_API kl_tensor kl_nested_at(const kl_site *site, kl_tensor values, kl_tensor offsets);
KL_API kl_tensor kl_nested_like_at(const kl_site *site, kl_tensor values, kl_tensor like);
KL_API kl_tensor kl_to_nested_at(const kl_site *site, kl_tensor padded, kl_tensor lengths, int64_t rows);
KL_API kl_tensor kl_nested_pad_at(const kl_site *site, kl_tensor a, int64_t length, double value);
KL_API kl_tensor kl_nested_sum_at(const kl_site *site, kl_tensor a);
KL_API kl_tensor kl_nested_mean_at(const kl_site *site, kl_tensor a);
KL_API kl_tensor kl_nested_max_at(const kl_site *site, kl_tensor a);
KL_API kl_tensor kl_nested_softmax_at(const kl_site *site, kl_tensor a);
KL_API kl_tensor kl_nested_attention_at(const kl_site *site, kl_tensor q, kl_tensor k, kl_tensor v, bool causal);
KL_API kl_tensor kl_to_quantized_at(const kl_site *site, kl_tensor x, kl_qscheme scheme, kl_tensor scale,
                                    kl_tensor zero_point);
KL_API kl_tensor kl_quantized_at(const kl_site *site, kl_tensor integers, kl_qscheme scheme, kl_tensor scale,
                                 kl_tensor zero_point);
KL_API kl_status kl_observer_update_at(const kl_site *site, kl_observer *o, kl_tensor x);
KL_API kl_tensor kl_observer_quantize_at(const kl_site *site, const kl_observer *o, kl_tensor x);
KL_API kl_tensor kl_sparse_coo_at(const kl_site *site, kl_tensor values, kl_tensor rows, kl_tensor columns,
                                  int64_t nrows, int64_t ncolumns);
KL_API kl_tensor kl_sparse_csr_at(const kl_site *site, kl_tensor values, kl_tensor starts, kl_tensor columns,
                                  int64_t ncolumns);
KL_API kl_tensor kl_to_sparse_at(const kl_site *site, kl_tensor a, int64_t bound);
KL_API kl_tensor kl_sampled_matmul_at(const kl_site *site, kl_tensor a, kl_tensor b, kl_tensor pattern);
KL_API kl_tensor kl_relu_at(const kl_site *site, kl_tensor a);
KL_API kl_tensor kl_sigmoid_at(const kl_site *site, kl_tensor a);
KL_API kl_tensor kl_silu_at(const kl_site *site, kl_tensor a);
KL_API kl_tensor kl_gelu_at(const kl_site *site, kl_tensor a);
KL_API kl_tensor kl_softplus_at(const kl_site *site, kl_tensor a);
KL_API kl_tensor kl_mish_at(const kl_site *site, kl_tensor a);
KL_API kl_tensor kl_gelu_erf_at(const kl_site *site, kl_tensor a);
KL_API kl_tensor kl_log_sigmoid_at(const kl_site *site, kl_tensor a);
KL_API kl_tensor kl_softsign_at(const kl_site *site, kl_tensor a);
KL_API kl_tensor kl_selu_at(const kl_site *site, kl_tensor a);
KL_API kl_tensor kl_celu_at(const kl_site *site, kl_tensor a, double alpha);
KL_API kl_tensor kl_hard_sigmoid_at(const kl_site *site, kl_tensor a, double alpha, double beta);
KL_API kl_tensor kl_hard_swish_at(const kl_site *site, kl_tensor a);
KL_API kl_tensor kl_leaky_relu_at(const kl_site *site, kl_tensor a, double slope);
KL_API kl_tensor kl_elu_at(const kl_site *site, kl_tensor a, double alpha);
KL_API kl_tensor kl_clamp_at(const kl_site *site, kl_tensor a, double min, double max);
KL_API kl_tensor kl_dropout_at(const kl_site *site, kl_tensor a, double p, uint64_t seed, bool training);
KL_API kl_tensor kl_dropout_seeded_at(const kl_site *site, kl_tensor a, double p, kl_tensor seed, bool training);
KL_API kl_tensor kl_softmax_at(const kl_site *site, kl_tensor a, int axis);
KL_API kl_tensor kl_log_softmax_at(const kl_site *site, kl_tensor a, int axis);
KL_API kl_tensor kl_logsumexp_at(const kl_site *site, kl_tensor a, int naxes, const int *axes, bool keepdims);
KL_API kl_tensor kl_var_at(const kl_site *site, kl_tensor a, int naxes, const int *axes, bool keepdims, int correction);
KL_API kl_tensor kl_std_at(const kl_site *site, kl_tensor a, int naxes, const int *axes, bool keepdims, int correction);
KL_API kl_tensor kl_norm_at(const kl_site *site, kl_tensor a, int naxes, const int *axes, bool keepdims);
KL_API kl_tensor kl_layer_norm_at(const kl_site *site, kl_tensor x, int naxes, kl_tensor weight, kl_tensor bias,
                                  double eps);
KL_API kl_tensor kl_rms_norm_at(const kl_site *site, kl_tensor x, int naxes, kl_tensor weight, double eps);
KL_API kl_tensor kl_group_norm_at(const kl_site *site, kl_tensor x, int groups, kl_tensor weight, kl_tensor bias,
                                  double eps);
KL_API kl_tensor kl_batch_norm_at(const kl_site *site, kl_tensor x, kl_tensor weight, kl_tensor bias, kl_tensor mean,
                                  kl_tensor var, bool training, double momentum, double eps);
KL_API kl_tensor kl_embedding_at(const kl_site *site, kl_tensor table, kl_tensor ids);
KL_API kl_tensor kl_linear_at(const kl_site *site, kl_tensor x, kl_tensor w, kl_tensor b);
KL_API kl_tensor kl_einsum_at(const kl_site *site, const char *subscripts, int n, const kl_tensor *operand);
KL_API kl_tensor kl_attention_at(const kl_site *site, kl_tensor q, kl_tensor k, kl_tensor v, kl_tensor mask,
                                 bool causal);
KL_API kl_tensor kl_conv_at(const kl_site *site, kl_tensor x, kl_tensor w, kl_tensor b, const int64_t *stride,
                            const int64_t *pad_low, const int64_t *pad_high, const int64_t *dilation, int groups);
KL_API kl_tensor kl_conv_transpose_at(const kl_site *site, kl_tensor x, kl_tensor w, kl_tensor b,
                                      const int64_t *stride, const int64_t *pad_low, const int64_t *pad_high,
                                      const int64_t *dilation, int groups);
KL_API kl_tensor kl_sum_pool_at(const kl_site *site, kl_tensor a, int n, const int64_t *window, const int64_t *stride,
                                const int64_t *pad_low, const int64_t *pad_high, const int64_t *dilation);
KL_API kl_tensor kl_avg_pool_at(const kl_site *site, kl_tensor a, int n, const int64_t *window, const int64_t *stride,
                                const int64_t *pad_low, const int64_t *pad_high, const int64_t *dilation);
KL_API kl_tensor kl_max_pool_at(const kl_site *site, kl_tensor a, int n, const int64_t *window, const int64_t *stride,
                                const int64_t *pad_low, const int64_t *pad_high, const int64_t *dilation);
KL_API kl_tensor kl_min_pool_at(const kl_site *site, kl_tensor a, int n, const int64_t *window, const int64_t *stride,
                                const int64_t *pad_low, const int64_t *pad_high, const int64_t *dilation);
KL_API kl_tensor kl_one_hot_at(const kl_site *site, kl_tensor labels, int64_t classes, kl_dtype dtype);
KL_API kl_tensor kl_cross_entropy_at(const kl_site *site, kl_tensor logits, kl_tensor labels);
KL_API kl_tensor kl_nll_loss_at(const kl_site *site, kl_tensor log_probs, kl_tensor labels);
KL_API kl_tensor kl_mse_loss_at(const kl_site *site, kl_tensor a, kl_tensor b);
KL_API kl_tensor kl_l1_loss_at(const kl_site *site, kl_tensor a, kl_tensor b);
KL_API kl_tensor kl_huber_loss_at(const kl_site *site, kl_tensor a, kl_tensor b, double delta);
KL_API kl_tensor kl_smooth_l1_loss_at(const kl_site *site, kl_tensor a, kl_tensor b, double beta);
KL_API kl_tensor kl_binary_cross_entropy_with_logits_at(const kl_site *site, kl_tensor x, kl_tensor y);
KL_API kl_tensor kl_binary_cross_entropy_at(const kl_site *site, kl_tensor p, kl_tensor y);
KL_API kl_tensor kl_hinge_loss_at(const kl_site *site, kl_tensor x, kl_tensor y);
KL_API kl_tensor kl_divergence_at(const kl_site *site, kl_tensor log_q, kl_tensor p);
KL_API kl_tensor kl_input_at(const kl_site *site, kl_device device, kl_dtype dtype, int rank, const int64_t *dims,
                             const void *data);
KL_API kl_tensor kl_wrap_at(const kl_site *site, kl_device device, kl_dtype dtype, int rank, const int64_t *dims,
                            void *data, void (*release)(void *ctx), void *ctx);
KL_API kl_tensor kl_zeros_at(const kl_site *site, kl_device device, kl_dtype dtype, int rank, const int64_t *dims);
KL_API kl_tensor kl_ones_at(const kl_site *site, kl_device device, kl_dtype dtype, int rank, const int64_t *dims);
KL_API kl_tensor kl_full_at(const kl_site *site, kl_device device, kl_dtype dtype, int rank, const int64_t *dims,
                            double value);
KL_API kl_tensor kl_scalar_at(const kl_site *site, kl_device device, kl_dtype dtype, double value);
KL_API kl_tensor kl_const_at(const kl_site *site, kl_device device, kl_dtype dtype, double value);
KL_API kl_tensor kl_arange_at(const kl_site *site, kl_device device, kl_dtype dtype, int64_t n);
KL_API kl_tensor kl_eye_at(const kl_site *site, kl_device device, kl_dtype dtype, int64_t rows, int64_t columns);
KL_API kl_tensor kl_linspace_at(const kl_site *site, kl_device device, kl_dtype dtype, double start, double stop,
                                int64_t n);
KL_API kl_tensor kl_iota_at(const kl_site *site, kl_device device, kl_dtype dtype, int rank, const int64_t *dims,
                            int axis);
KL_API kl_tensor kl_random_bits_at(const kl_site *site, kl_device device, kl_dtype dtype, int rank,
                                   const int64_t *dims, uint64_t seed);
KL_API kl_tensor kl_rand_at(const kl_site *site, kl_device device, kl_dtype dtype, int rank, const int64_t *dims,
                            uint64_t seed);
KL_API kl_tensor kl_randn_at(const kl_site *site, kl_device device, kl_dtype dtype, int rank, const int64_t *dims,
                             uint64_t seed);
KL_API kl_tensor kl_random_seed_at(const kl_site *site, kl_device device, uint64_t seed);
KL_API kl_tensor kl_random_split_at(const kl_site *site, kl_tensor seed, int64_t n);
KL_API kl_tensor kl_random_fold_in_at(const kl_site *site, kl_tensor seed, kl_tensor data);
KL_API kl_tensor kl_random_bits_seeded_at(const kl_site *site, kl_tensor seed, kl_dtype dtype, int rank,
                                          const int64_t *dims);
KL_API kl_tensor kl_rand_seeded_at(const kl_site *site, kl_tensor seed, kl_dtype dtype, int rank, const int64_t *dims);
KL_API kl_tensor kl_randn_seeded_at(const kl_site *site, kl_tensor seed, kl_dtype dtype, int rank, const int64_t *dims);
KL_API kl_tensor kl_categorical_at(const kl_site *site, kl_tensor logits, int axis, kl_tensor seed);
KL_API kl_tensor kl_neg_at(const kl_site *site, kl_tensor a);
KL_API kl_tensor kl_abs_at(const kl_site *site, kl_tensor a);
KL_API kl_tensor kl_exp_at(const kl_site *site, kl_tensor a);
KL_API kl_tensor kl_log_at(const kl_site *site, kl_tensor a);
KL_API kl_tensor kl_exp2_at(const kl_site *site, kl_tensor a);
KL_API kl_tensor kl_expm1_at(const kl_site *site, kl_tensor a);
KL_API kl_tensor kl_log2_at(const kl_site *site, kl_tensor a);
KL_API kl_tensor kl_log1p_at(const kl_site *site, kl_tensor a);
KL_API kl_tensor kl_tanh_at(const kl_site *site, kl_tensor a);
KL_API kl_tensor kl_sin_at(const kl_site *site, kl_tensor a);
KL_API kl_tensor kl_cos_at(const kl_site *site, kl_tensor a);
KL_API kl_tensor kl_tan_at(const kl_site *site, kl_tensor a);
KL_API kl_tensor kl_asin_at(const kl_site *site, kl_tensor a);
KL_API kl_tensor kl_acos_at(const kl_site *site, kl_tensor a);
KL_API kl_tensor kl_atan_at(const kl_site *site, kl_tensor a);
KL_API kl_tensor kl_sinh_at(const kl_site *site, kl_tensor a);
KL_API kl_tensor kl_cosh_at(const kl_site *site, kl_tensor a);
KL_API kl_tensor kl_asinh_at(const kl_site *site, kl_tensor a);
KL_API kl_tensor kl_acosh_at(const kl_site *site, kl_tensor a);
KL_API kl_tensor kl_atanh_at(const kl_site *site, kl_tensor a);
KL_API kl_tensor kl_erf_at(const kl_site *site, kl_tensor a);
KL_API kl_tensor kl_erfc_at(const kl_site *site, kl_tensor a);
KL_API kl_tensor kl_sqrt_at(const kl_site *site, kl_tensor a);
KL_API kl_tensor kl_rsqrt_at(const kl_site *site, kl_tensor a);
KL_API kl_tensor kl_recip_at(const kl_site *site, kl_tensor a);
KL_API kl_tensor kl_floor_at(const kl_site *site, kl_tensor a);
KL_API kl_tensor kl_ceil_at(const kl_site *site, kl_tensor a);
KL_API kl_tensor kl_round_at(const kl_site *site, kl_tensor a);
KL_API kl_tensor kl_trunc_at(const kl_site *site, kl_tensor a);
KL_API kl_tensor kl_sign_at(const kl_site *site, kl_tensor a);
KL_API kl_tensor kl_is_nan_at(const kl_site *site, kl_tensor a);
KL_API kl_tensor kl_is_finite_at(const kl_site *site, kl_tensor a);
KL_API kl_tensor kl_is_inf_at(const kl_site *site, kl_tensor a);
KL_API kl_tensor kl_cbrt_at(const kl_site *site, kl_tensor a);
KL_API kl_tensor kl_log10_at(const kl_site *site, kl_tensor a);
KL_API kl_tensor kl_lgamma_at(const kl_site *site, kl_tensor a);
KL_API kl_tensor kl_digamma_at(const kl_site *site, kl_tensor a);
KL_API kl_tensor kl_erfinv_at(const kl_site *site, kl_tensor a);
KL_API kl_tensor kl_popcount_at(const kl_site *site, kl_tensor a);
KL_API kl_tensor kl_clz_at(const kl_site *site, kl_tensor a);
KL_API kl_tensor kl_not_at(const kl_site *site, kl_tensor a);
KL_API kl_tensor kl_square_at(const kl_site *site, kl_tensor a);
KL_API kl_tensor kl_add_at(const kl_site *site, kl_tensor a, kl_tensor b);
KL_API kl_tensor kl_sub_at(const kl_site *site, kl_tensor a, kl_tensor b);
KL_API kl_tensor kl_mul_at(const kl_site *site, kl_tensor a, kl_tensor b);
KL_API kl_tensor kl_div_at(const kl_site *site, kl_tensor a, kl_tensor b);
KL_API kl_tensor kl_maximum_at(const kl_site *site, kl_tensor a, kl_tensor b);
KL_API kl_tensor kl_minimum_at(const kl_site *site, kl_tensor a, kl_tensor b);
KL_API kl_tensor kl_pow_at(const kl_site *site, kl_tensor a, kl_tensor b);
KL_API kl_tensor kl_atan2_at(const kl_site *site, kl_tensor a, kl_tensor b);
KL_API kl_tensor kl_hypot_at(const kl_site *site, kl_tensor a, kl_tensor b);
KL_API kl_tensor kl_copysign_at(const kl_site *site, kl_tensor a, kl_tensor b);
KL_API kl_tensor kl_and_at(const kl_site *site, kl_tensor a, kl_tensor b);
KL_API kl_tensor kl_or_at(const kl_site *site, kl_tensor a, kl_tensor b);
KL_API kl_tensor kl_xor_at(const kl_site *site, kl_tensor a, kl_tensor b);
KL_API kl_tensor kl_shl_at(const kl_site *site, kl_tensor a, kl_tensor b);
KL_API kl_tensor kl_shr_at(const kl_site *site, kl_tensor a, kl_tensor b);
KL_API kl_tensor kl_shr_logical_at(const kl_site *site, kl_tensor a, kl_tensor b);
KL_API kl_tensor kl_rem_at(const kl_site *site, kl_tensor a, kl_tensor b);
KL_API kl_tensor kl_div_trunc_at(const kl_site *site, kl_tensor a, kl_tensor b);
KL_API kl_tensor kl_div_floor_at(const kl_site *site, kl_tensor a, kl_tensor b);
KL_API kl_tensor kl_fmod_at(const kl_site *site, kl_tensor a, kl_tensor b);
KL_API kl_tensor kl_mod_at(const kl_site *site, kl_tensor a, kl_tensor b);
KL_API kl_tensor kl_logaddexp_at(const kl_site *site, kl_tensor a, kl_tensor b);
KL_API kl_tensor kl_nextafter_at(const kl_site *site, kl_tensor a, kl_tensor b);
KL_API kl_tensor kl_eq_at(const kl_site *site, kl_tensor a, kl_tensor b);
KL_API kl_tensor kl_ne_at(const kl_site *site, kl_tensor a, kl_tensor b);
KL_API kl_tensor kl_lt_at(const kl_site *site, kl_tensor a, kl_tensor b);
KL_API kl_tensor kl_le_at(const kl_site *site, kl_tensor a, kl_tensor b);
KL_API kl_tensor kl_gt_at(const kl_site *site, kl_tensor a, kl_tensor b);
KL_API kl_tensor kl_ge_at(const kl_site *site, kl_tensor a, kl_tensor b);
KL_API kl_tensor kl_fma_at(const kl_site *site, kl_tensor a, kl_tensor b, kl_tensor c);
KL_API kl_tensor kl_where_at(const kl_site *site, kl_tensor a, kl_tensor b, kl_tensor c);
KL_API kl_tensor kl_add_scalar_at(const kl_site *site, kl_tensor a, double value);
KL_API kl_tensor kl_sub_scalar_at(const kl_site *site, kl_tensor a, double value);
KL_API kl_tensor kl_mul_scalar_at(const kl_site *site, kl_tensor a, double value);
KL_API kl_tensor kl_div_scalar_at(const kl_site *site, kl_tensor a, double value);
KL_API kl_tensor kl_maximum_scalar_at(const kl_site *site, kl_tensor a, double value);
KL_API kl_tensor kl_minimum_scalar_at(const kl_site *site, kl_tensor a, double value);
KL_API kl_tensor kl_powi_at(const kl_site *site, kl_tensor a, int n);
KL_API kl_tensor kl_pow_scalar_at(const kl_site *site, kl_tensor a, double exponent);
KL_API kl_tensor kl_lerp_at(const kl_site *site, kl_tensor a, kl_tensor b, kl_tensor weight);
KL_API kl_tensor kl_masked_fill_at(const kl_site *site, kl_tensor a, kl_tensor mask, double value);
KL_API kl_tensor kl_is_close_at(const kl_site *site, kl_tensor a, kl_tensor b, double relative, double absolute,
                                bool equal_nan);
KL_API kl_tensor kl_all_close_at(const kl_site *site, kl_tensor a, kl_tensor b, double relative, double absolute,
                                 bool equal_nan);
KL_API kl_tensor kl_to_at(const kl_site *site, kl_tensor a, kl_device device);
KL_API kl_tensor kl_cast_at(const kl_site *site, kl_tensor a, kl_dtype dtype);
KL_API kl_tensor kl_quantize_at(const kl_site *site, kl_tensor a, kl_tensor scale, kl_tensor zero_point,
                                kl_dtype dtype, int axis);
KL_API kl_tensor kl_dequantize_at(const kl_site *site, kl_tensor q, kl_tensor scale, kl_tensor zero_point, int axis);
KL_API kl_tensor kl_reshape_at(const kl_site *site, kl_tensor a, int rank, const int64_t *dims);
KL_API kl_tensor kl_permute_at(const kl_site *site, kl_tensor a, const int *axes);
KL_API kl_tensor kl_transpose_at(const kl_site *site, kl_tensor a, int axis0, int axis1);
KL_API kl_tensor kl_expand_at(const kl_site *site, kl_tensor a, int rank, const int64_t *dims);
KL_API kl_tensor kl_unsqueeze_at(const kl_site *site, kl_tensor a, int axis);
KL_API kl_tensor kl_squeeze_at(const kl_site *site, kl_tensor a, int axis);
KL_API kl_tensor kl_slice_at(const kl_site *site, kl_tensor a, const int64_t *start, const int64_t *stop,
                             const int64_t *step);
KL_API kl_tensor kl_narrow_at(const kl_site *site, kl_tensor a, int axis, int64_t start, int64_t count);
KL_API kl_tensor kl_window_at(const kl_site *site, kl_tensor a, int axis, int64_t size, int64_t stride,
                              int64_t dilation);
KL_API kl_tensor kl_flip_at(const kl_site *site, kl_tensor a, int naxes, const int *axes);
KL_API kl_tensor kl_pad_at(const kl_site *site, kl_tensor a, const int64_t *low, const int64_t *high, double value);
KL_API kl_tensor kl_concat_at(const kl_site *site, int n, const kl_tensor *parts, int axis);
KL_API kl_tensor kl_stack_at(const kl_site *site, int n, const kl_tensor *parts, int axis);
KL_API kl_tensor kl_tile_at(const kl_site *site, kl_tensor a, const int64_t *times);
KL_API kl_tensor kl_repeat_at(const kl_site *site, kl_tensor a, int axis, int64_t times);
KL_API kl_tensor kl_roll_at(const kl_site *site, kl_tensor a, int axis, int64_t shift);
KL_API kl_tensor kl_triu_at(const kl_site *site, kl_tensor a, int64_t diagonal);
KL_API kl_tensor kl_tril_at(const kl_site *site, kl_tensor a, int64_t diagonal);
KL_API kl_status kl_split_at(const kl_site *site, kl_tensor a, int axis, int n, const int64_t *counts,
                             kl_tensor *parts);
KL_API kl_tensor kl_take_at(const kl_site *site, kl_tensor a, int axis, kl_tensor index);
KL_API kl_tensor kl_index_add_at(const kl_site *site, kl_tensor a, int axis, kl_tensor index, kl_tensor update);
KL_API kl_tensor kl_index_max_at(const kl_site *site, kl_tensor a, int axis, kl_tensor index, kl_tensor update);
KL_API kl_tensor kl_index_min_at(const kl_site *site, kl_tensor a, int axis, kl_tensor index, kl_tensor update);
KL_API kl_tensor kl_index_copy_at(const kl_site *site, kl_tensor a, int axis, kl_tensor index, kl_tensor update);
KL_API kl_tensor kl_take_along_axis_at(const kl_site *site, kl_tensor a, int axis, kl_tensor index);
KL_API kl_tensor kl_add_along_axis_at(const kl_site *site, kl_tensor a, int axis, kl_tensor index, kl_tensor update);
KL_API kl_tensor kl_put_along_axis_at(const kl_site *site, kl_tensor a, int axis, kl_tensor index, kl_tensor update);
KL_API kl_tensor kl_argsort_at(const kl_site *site, kl_tensor a, int axis, bool descending);
KL_API kl_tensor kl_sort_at(const kl_site *site, kl_tensor a, int axis, bool descending);
KL_API kl_tensor kl_topk_at(const kl_site *site, kl_tensor a, int64_t k, int axis, bool largest, kl_tensor *indices);
KL_API kl_tensor kl_dynamic_slice_at(const kl_site *site, kl_tensor a, const kl_tensor *start, const int64_t *count);
KL_API kl_tensor kl_dynamic_update_at(const kl_site *site, kl_tensor a, kl_tensor update, const kl_tensor *start);
KL_API kl_tensor kl_bitcast_at(const kl_site *site, kl_tensor a, kl_dtype dtype);
KL_API kl_tensor kl_sum_at(const kl_site *site, kl_tensor a, int naxes, const int *axes, bool keepdims);
KL_API kl_tensor kl_max_at(const kl_site *site, kl_tensor a, int naxes, const int *axes, bool keepdims);
KL_API kl_tensor kl_min_at(const kl_site *site, kl_tensor a, int naxes, const int *axes, bool keepdims);
KL_API kl_tensor kl_prod_at(const kl_site *site, kl_tensor a, int naxes, const int *axes, bool keepdims);
KL_API kl_tensor kl_reduce_and_at(const kl_site *site, kl_tensor a, int naxes, const int *axes, bool keepdims);
KL_API kl_tensor kl_reduce_or_at(const kl_site *site, kl_tensor a, int naxes, const int *axes, bool keepdims);
KL_API kl_tensor kl_reduce_xor_at(const kl_site *site, kl_tensor a, int naxes, const int *axes, bool keepdims);
KL_API kl_tensor kl_p_norm_at(const kl_site *site, kl_tensor a, double p, int naxes, const int *axes, bool keepdims);
KL_API kl_tensor kl_any_at(const kl_site *site, kl_tensor a, int naxes, const int *axes, bool keepdims);
KL_API kl_tensor kl_all_at(const kl_site *site, kl_tensor a, int naxes, const int *axes, bool keepdims);
KL_API kl_tensor kl_mean_at(const kl_site *site, kl_tensor a, int naxes, const int *axes, bool keepdims);
KL_API kl_tensor kl_sum_all_at(const kl_site *site, kl_tensor a);
KL_API kl_tensor kl_argmax_at(const kl_site *site, kl_tensor a, int axis);
KL_API kl_tensor kl_argmin_at(const kl_site *site, kl_tensor a, int axis);
KL_API kl_tensor kl_cumsum_at(const kl_site *site, kl_tensor a, int axis, bool exclusive, bool reverse);
KL_API kl_tensor kl_cumprod_at(const kl_site *site, kl_tensor a, int axis, bool exclusive, bool reverse);
KL_API kl_tensor kl_cummax_at(const kl_site *site, kl_tensor a, int axis, bool reverse);
KL_API kl_tensor kl_cummin_at(const kl_site *site, kl_tensor a, int axis, bool reverse);
KL_API kl_tensor kl_cummax_indices_at(const kl_site *site, kl_tensor a, int axis, bool reverse, kl_tensor *indices);
KL_API kl_tensor kl_cummin_indices_at(const kl_site *site, kl_tensor a, int axis, bool reverse, kl_tensor *indices);
KL_API kl_tensor kl_recurrence_at(const kl_site *site, kl_tensor a, kl_tensor b, int axis, bool reverse);
KL_API kl_tensor kl_logcumsumexp_at(const kl_site *site, kl_tensor a, int axis);
KL_API kl_tensor kl_matmul_at(const kl_site *site, kl_tensor a, kl_tensor b);
KL_API kl_tensor kl_dot_general_at(const kl_site *site, kl_tensor a, kl_tensor b, int nbatch, const int *batch_a,
                                   const int *batch_b, int ncontract, const int *contract_a, const int *contract_b);
KL_API kl_tensor kl_attention_with_at(const kl_site *site, kl_tensor q, kl_tensor k, kl_tensor v,
                                      const kl_attention_options *options, kl_tensor *keys, kl_tensor *values);
KL_API kl_tensor kl_cross_entropy_with_at(const kl_site *site, kl_tensor logits, kl_tensor target,
                                          const kl_class_loss_options *options);
KL_API kl_tensor kl_nll_loss_with_at(const kl_site *site, kl_tensor log_probs, kl_tensor target,
                                     const kl_class_loss_options *options);
KL_API kl_tensor kl_diagonal_at(const kl_site *site, kl_tensor a, int64_t offset, int axis0, int axis1);
KL_API kl_tensor kl_diagonal_matrix_at(const kl_site *site, kl_tensor a, int64_t offset);
KL_API kl_tensor kl_nonzero_at(const kl_site *site, kl_tensor a, int64_t size, kl_tensor *count);
KL_API kl_tensor kl_unique_at(const kl_site *site, kl_tensor a, int64_t size, kl_tensor *count, kl_tensor *inverse,
                              kl_tensor *counts);
KL_API kl_tensor kl_resize_at(const kl_site *site, kl_tensor a, int naxes, const int *axes, const int64_t *sizes,
                              const kl_resize_options *options);
KL_API kl_tensor kl_grid_sample_at(const kl_site *site, kl_tensor a, kl_tensor grid, kl_sampling sampling,
                                   kl_sample_border border, bool corners);
KL_API kl_tensor kl_roi_align_at(const kl_site *site, kl_tensor a, kl_tensor boxes, kl_tensor image,
                                 const kl_roi_options *options);
KL_API kl_tensor kl_adaptive_avg_pool_at(const kl_site *site, kl_tensor a, int n, const int64_t *sizes);
KL_API kl_tensor kl_adaptive_max_pool_at(const kl_site *site, kl_tensor a, int n, const int64_t *sizes);
KL_API kl_tensor kl_max_pool_indices_at(const kl_site *site, kl_tensor a, int n, const int64_t *window,
                                        const int64_t *stride, const int64_t *pad_low, const int64_t *pad_high,
                                        const int64_t *dilation, kl_tensor *indices);
KL_API kl_tensor kl_max_unpool_at(const kl_site *site, kl_tensor a, kl_tensor indices, int n, const int64_t *sizes);
KL_API kl_tensor kl_gather_nd_at(const kl_site *site, kl_tensor a, kl_tensor index, int batch, unsigned flags);
KL_API kl_tensor kl_scatter_nd_at(const kl_site *site, kl_tensor a, kl_tensor index, kl_tensor update,
                                  kl_scatter_kind kind, unsigned flags);
KL_API kl_tensor kl_take_along_axis_with_at(const kl_site *site, kl_tensor a, int axis, kl_tensor index,
                                            unsigned flags);
KL_API kl_tensor kl_put_along_axis_with_at(const kl_site *site, kl_tensor a, int axis, kl_tensor index,
                                           kl_tensor update, kl_scatter_kind kind, unsigned flags);
KL_API kl_tensor kl_index_at(const kl_site *site, kl_tensor a, int n, const kl_tensor *index, unsigned flags);
KL_API kl_tensor kl_index_put_at(const kl_site *site, kl_tensor a, int n, const kl_tensor *index, kl_tensor update,
                                 kl_scatter_kind kind, unsigned flags);
KL_API kl_tensor kl_pad_border_at(const kl_site *site, kl_tensor a, const int64_t *low, const int64_t *high,
                                  kl_border border);
KL_API kl_tensor kl_cholesky_at(const kl_site *site, kl_tensor a);
KL_API kl_tensor kl_triangular_solve_at(const kl_site *site, kl_tensor a, kl_tensor b, bool upper, bool transposed);
KL_API kl_tensor kl_qr_at(const kl_site *site, kl_tensor a, kl_tensor *r);
KL_API kl_tensor kl_solve_at(const kl_site *site, kl_tensor a, kl_tensor b);
KL_API kl_tensor kl_inverse_at(const kl_site *site, kl_tensor a);
KL_API kl_tensor kl_det_at(const kl_site *site, kl_tensor a);
KL_API kl_tensor kl_fft_at(const kl_site *site, kl_tensor a, int axis, bool inverse);
KL_API kl_tensor kl_rfft_at(const kl_site *site, kl_tensor a, int axis);
KL_API kl_tensor kl_irfft_at(const kl_site *site, kl_tensor a, int axis, int64_t n);
KL_API kl_status kl_recurrent_at(const kl_site *site, kl_cell_kind kind, kl_tensor x, kl_tensor w, kl_tensor r,
                                 const kl_recurrent_options *options, kl_tensor out[3]);
KL_API kl_tensor kl_float8_encode_at(const kl_site *site, kl_tensor a, kl_float8 format, bool saturate);
KL_API kl_tensor kl_float8_decode_at(const kl_site *site, kl_tensor codes, kl_float8 format, kl_dtype dtype);
KL_API kl_tensor kl_int4_pack_at(const kl_site *site, kl_tensor a);
KL_API kl_tensor kl_int4_unpack_at(const kl_site *site, kl_tensor codes, kl_dtype dtype);
KL_API int64_t kl_symbol_at(const kl_site *site, const char *name, int64_t min, int64_t max);
KL_API int64_t kl_symbol_multiple_at(const kl_site *site, const char *name, int64_t min, int64_t max,
                                     int64_t multiple_of);
KL_API kl_tensor kl_input_symbolic_at(const kl_site *site, kl_device device, kl_dtype dtype, int rank,
                                      const int64_t *lengths, const int64_t *dims, const void *data);
KL_API int64_t kl_length_add_at(const kl_site *site, int64_t a, int64_t b);
KL_API int64_t kl_length_sub_at(const kl_site *site, int64_t a, int64_t b);
KL_API int64_t kl_length_mul_at(const kl_site *site, int64_t a, int64_t b);
KL_API int64_t kl_length_div_at(const kl_site *site, int64_t a, int64_t b);
KL_API kl_tensor kl_length_scalar_at(const kl_site *site, kl_device device, kl_dtype dtype, int64_t length);
KL_API kl_step *kl_trace_end_step_at(const kl_site *site, int64_t ninputs, const kl_tensor *inputs);
KL_API kl_status kl_step_run_at(const kl_site *site, const kl_step *step, int64_t ninputs, const kl_tensor *inputs,
                                int64_t nslots, const kl_slot *slots, int64_t noutputs, kl_tensor *outputs);
KL_API kl_tensor kl_dense_at(const kl_site *site, kl_tensor a);
KL_API kl_tensor kl_layer_part_at(const kl_site *site, kl_tensor t, uint32_t i);
KL_API kl_tensor kl_comm_all_reduce_at(const kl_site *site, kl_comm *comm, kl_reduction kind, kl_tensor a);
KL_API kl_tensor kl_comm_reduce_scatter_at(const kl_site *site, kl_comm *comm, kl_reduction kind, int axis,
                                           kl_tensor a);
KL_API kl_tensor kl_comm_all_gather_at(const kl_site *site, kl_comm *comm, int axis, kl_tensor a);
KL_API kl_tensor kl_comm_broadcast_at(const kl_site *site, kl_comm *comm, int root, kl_tensor a);
KL_API kl_status kl_comm_sync_at(const kl_site *site, kl_comm *comm, int n, const kl_tensor *tensors);
KL_API kl_status kl_comm_gradients_at(const kl_site *site, kl_comm *comm, int n, kl_tensor *gradients,
                                      int64_t bucket_bytes);
KL_API kl_comm_shards *kl_comm_shards_new_at(const kl_site *site, kl_comm *comm, int n, const kl_tensor *params,
                                             int64_t bucket_bytes);
KL_API kl_comm_shards *kl_comm_shards_new_params_at(const kl_site *site, kl_comm *comm, kl_params *params,
                                                    int64_t bucket_bytes);
KL_API kl_status kl_comm_shards_step_at(const kl_site *site, kl_comm_shards *shards, kl_optimizer *opt,
                                        const kl_tensor *gradients, double lr);
KL_API kl_status kl_comm_shards_reduce_at(const kl_site *site, kl_comm_shards *shards, const kl_tensor *gradients,
                                          kl_tensor *parts);
KL_API kl_tensor kl_comm_shards_clip_norm_at(const kl_site *site, kl_comm_shards *shards, kl_tensor *parts, double max);
KL_API kl_status kl_comm_shards_gather_at(const kl_site *site, kl_comm_shards *shards);
KL_API kl_status kl_comm_shards_reload_at(const kl_site *site, kl_comm_shards *shards);
KL_API kl_status kl_nn_linear_init_at(const kl_site *site, kl_nn_linear *m, kl_params *params, const char *prefix,
                                      int64_t in, int64_t out, bool bias);
KL_API kl_tensor kl_nn_linear_forward_at(const kl_site *site, const kl_nn_linear *m, kl_tensor x);
KL_API kl_status kl_nn_embedding_init_at(const kl_site *site, kl_nn_embedding *m, kl_params *params,
                                         const char *prefix, int64_t rows, int64_t width);
KL_API kl_tensor kl_nn_embedding_forward_at(const kl_site *site, const kl_nn_embedding *m, kl_tensor ids);
KL_API kl_status kl_nn_conv_init_at(const kl_site *site, kl_nn_conv *m, kl_params *params, const char *prefix,
                                    const kl_nn_conv_options *options);
KL_API kl_tensor kl_nn_conv_forward_at(const kl_site *site, const kl_nn_conv *m, kl_tensor x);
KL_API kl_status kl_nn_layer_norm_init_at(const kl_site *site, kl_nn_norm *m, kl_params *params, const char *prefix,
                                          int64_t width);
KL_API kl_status kl_nn_rms_norm_init_at(const kl_site *site, kl_nn_norm *m, kl_params *params, const char *prefix,
                                        int64_t width);
KL_API kl_status kl_nn_batch_norm_init_at(const kl_site *site, kl_nn_norm *m, kl_params *params, const char *prefix,
                                          int64_t channels);
KL_API kl_status kl_nn_group_norm_init_at(const kl_site *site, kl_nn_norm *m, kl_params *params, const char *prefix,
                                          int64_t channels, int groups);
KL_API kl_tensor kl_nn_norm_forward_at(const kl_site *site, const kl_nn_norm *m, kl_tensor x, bool training);
KL_API kl_tensor kl_nn_dropout_at(const kl_site *site, kl_tensor x, double p, kl_tensor seed, int64_t which);
KL_API kl_status kl_nn_cache_init_at(const kl_site *site, kl_nn_cache *cache, kl_device device, kl_dtype dtype,
                                     int layers, int64_t batch, int64_t kv_heads, int64_t length, int64_t head_width);
KL_API kl_status kl_nn_cache_advance_at(const kl_site *site, kl_nn_cache *cache, int64_t n);
KL_API kl_status kl_nn_cache_reset_at(const kl_site *site, kl_nn_cache *cache);
KL_API kl_tensor kl_nn_positions_at(const kl_site *site, kl_device device, int64_t n, const kl_nn_cache *cache);
KL_API kl_tensor kl_nn_rotary_at(const kl_site *site, kl_tensor x, kl_tensor positions, double base, bool interleaved);
KL_API kl_status kl_nn_attention_init_at(const kl_site *site, kl_nn_attention *m, kl_params *params,
                                         const char *prefix, const kl_nn_attention_options *options);
KL_API kl_tensor kl_nn_attention_forward_at(const kl_site *site, const kl_nn_attention *m, kl_tensor x, kl_tensor mask,
                                            kl_nn_cache *cache, int layer);
KL_API kl_status kl_nn_block_init_at(const kl_site *site, kl_nn_block *m, kl_params *params, const char *prefix,
                                     const kl_nn_block_options *options);
KL_API kl_tensor kl_nn_block_forward_at(const kl_site *site, const kl_nn_block *m, kl_tensor x, kl_tensor mask,
                                        kl_nn_cache *cache, int layer, kl_tensor seed);
KL_API kl_status kl_nn_lstm_init_at(const kl_site *site, kl_nn_recurrent *m, kl_params *params, const char *prefix,
                                    int64_t in, int64_t width);
KL_API kl_status kl_nn_gru_init_at(const kl_site *site, kl_nn_recurrent *m, kl_params *params, const char *prefix,
                                   int64_t in, int64_t width);
KL_API kl_tensor kl_nn_recurrent_forward_at(const kl_site *site, const kl_nn_recurrent *m, kl_tensor x, kl_tensor *h,
                                            kl_tensor *c);
KL_API kl_optimizer *kl_sgd_at(const kl_site *site, int n, const kl_tensor *param, const kl_sgd_options *options);
KL_API kl_optimizer *kl_adam_at(const kl_site *site, int n, const kl_tensor *param, const kl_adam_options *options);
KL_API kl_optimizer *kl_lion_at(const kl_site *site, int n, const kl_tensor *param, const kl_lion_options *options);
KL_API kl_optimizer *kl_rmsprop_at(const kl_site *site, int n, const kl_tensor *param,
                                   const kl_rmsprop_options *options);
KL_API kl_optimizer *kl_adafactor_at(const kl_site *site, int n, const kl_tensor *param,
                                     const kl_adafactor_options *options);
KL_API kl_status kl_optimizer_step_at(const kl_site *site, kl_optimizer *opt, kl_tensor loss, double lr);
KL_API kl_status kl_optimizer_step_gradients_at(const kl_site *site, kl_optimizer *opt, const kl_tensor *gradients,
                                                double lr);
KL_API kl_tensor kl_clip_norm_at(const kl_site *site, int n, kl_tensor *gradients, double max);
KL_API kl_status kl_clip_value_at(const kl_site *site, int n, kl_tensor *gradients, double max);
KL_API kl_accumulator *kl_accumulator_new_at(const kl_site *site, int n, const kl_tensor *param);
KL_API kl_status kl_accumulator_add_at(const kl_site *site, kl_accumulator *acc, const kl_tensor *gradients);
KL_API kl_status kl_accumulator_take_at(const kl_site *site, kl_accumulator *acc, kl_tensor *gradients);
KL_API kl_ema *kl_ema_new_at(const kl_site *site, int n, const kl_tensor *param, double decay);
KL_API kl_status kl_ema_update_at(const kl_site *site, kl_ema *ema);
KL_API kl_status kl_ema_swap_at(const kl_site *site, kl_ema *ema);
KL_API kl_tensor kl_init_values_at(const kl_site *site, const kl_init *init, kl_device device, kl_dtype dtype,
                                   int rank, const int64_t *dims, uint64_t seed);
KL_API kl_params *kl_params_new_at(const kl_site *site, kl_device device, kl_dtype dtype, uint64_t seed);
KL_API kl_tensor kl_params_make_at(const kl_site *site, kl_params *params, const char *name, int rank,
                                   const int64_t *dims, const kl_init *init);
KL_API kl_status kl_params_add_at(const kl_site *site, kl_params *params, const char *name, kl_tensor tensor);
KL_API kl_status kl_params_add_buffer_at(const kl_site *site, kl_params *params, const char *name, kl_tensor tensor);
KL_API kl_tensor kl_params_find_at(const kl_site *site, const kl_params *params, const char *name);
KL_API kl_status kl_params_reset_at(const kl_site *site, kl_params *params, const char *pattern, const kl_init *init);
KL_API kl_tensor kl_metric_topk_at(const kl_site *site, kl_tensor logits, kl_tensor labels, int64_t k);
KL_API kl_tensor kl_metric_accuracy_at(const kl_site *site, kl_tensor logits, kl_tensor labels);
KL_API kl_tensor kl_metric_confusion_at(const kl_site *site, kl_tensor guesses, kl_tensor labels, int64_t classes);
KL_API kl_status kl_vmap_at(const kl_site *site, kl_region_fn *fn, void *ctx, int64_t nin, const kl_tensor *in,
                            const int *in_axes, int64_t nout, const int *out_axes, kl_randomness randomness,
                            kl_tensor *out);
KL_API kl_status kl_autocast_begin_at(const kl_site *site, kl_dtype dtype);
KL_API kl_status kl_autocast_end_at(const kl_site *site);
KL_API kl_status kl_loss_scale_init_at(const kl_site *site, kl_loss_scale *s, kl_device device, double initial);
KL_API kl_tensor kl_loss_scale_up_at(const kl_site *site, const kl_loss_scale *s, kl_tensor loss);
KL_API kl_tensor kl_loss_scale_down_at(const kl_site *site, const kl_loss_scale *s, kl_tensor gradient);
KL_API kl_tensor kl_loss_scale_finite_at(const kl_site *site, int n, const kl_tensor *gradients);
KL_API kl_status kl_loss_scale_update_at(const kl_site *site, kl_loss_scale *s, kl_tensor finite);
KL_API kl_status kl_tracer_run_at(const kl_site *site, const kl_tracer *tr, int64_t nin, const kl_tensor *in,
                                  int64_t nout, kl_tensor *out);

#ifdef __cplusplus
}
#endif

#ifndef KL_NO_CALL_SITES
#define kl_trace_compile(...) kl_trace_compile_at(KL_HERE, __VA_ARGS__)
#define kl_object_new(...) kl_object_new_at(KL_HERE, __VA_ARGS__)
#define kl_object_add(...) kl_object_add_at(KL_HERE, __VA_ARGS__)
#define kl_object_write(...) kl_object_write_at(KL_HERE, __VA_ARGS__)
#define kl_inner(...) kl_inner_at(KL_HERE, __VA_ARGS__)
#define kl_from_inner(...) kl_from_inner_at(KL_HERE, __VA_ARGS__)
#define kl_backward(...) kl_backward_at(KL_HERE, __VA_ARGS__)
#define kl_gradients_replace(...) kl_gradients_replace_at(KL_HERE, __VA_ARGS__)
#define kl_all_reduce(...) kl_all_reduce_at(KL_HERE, __VA_ARGS__)
#define kl_all_gather(...) kl_all_gather_at(KL_HERE, __VA_ARGS__)
#define kl_reduce_scatter(...) kl_reduce_scatter_at(KL_HERE, __VA_ARGS__)
#define kl_broadcast(...) kl_broadcast_at(KL_HERE, __VA_ARGS__)
#define kl_cond(...) kl_cond_at(KL_HERE, __VA_ARGS__)
#define kl_while(...) kl_while_at(KL_HERE, __VA_ARGS__)
#define kl_scan(...) kl_scan_at(KL_HERE, __VA_ARGS__)
#define kl_checkpoint(...) kl_checkpoint_at(KL_HERE, __VA_ARGS__)
#define kl_custom_grad(...) kl_custom_grad_at(KL_HERE, __VA_ARGS__)
#define kl_custom(...) kl_custom_at(KL_HERE, __VA_ARGS__)
#define kl_random_bits_from(...) kl_random_bits_from_at(KL_HERE, __VA_ARGS__)
#define kl_rand_from(...) kl_rand_from_at(KL_HERE, __VA_ARGS__)
#define kl_randn_from(...) kl_randn_from_at(KL_HERE, __VA_ARGS__)
#define kl_dispatch(...) kl_dispatch_at(KL_HERE, __VA_ARGS__)
#define kl_dispatch_with(...) kl_dispatch_with_at(KL_HERE, __VA_ARGS__)
#define kl_dispatch_direct(...) kl_dispatch_direct_at(KL_HERE, __VA_ARGS__)
#define kl_memory_of(...) kl_memory_of_at(KL_HERE, __VA_ARGS__)
#define kl_wrap_device(...) kl_wrap_device_at(KL_HERE, __VA_ARGS__)
#define kl_to_dlpack(...) kl_to_dlpack_at(KL_HERE, __VA_ARGS__)
#define kl_to_dlpack_unversioned(...) kl_to_dlpack_unversioned_at(KL_HERE, __VA_ARGS__)
#define kl_from_dlpack(...) kl_from_dlpack_at(KL_HERE, __VA_ARGS__)
#define kl_from_dlpack_unversioned(...) kl_from_dlpack_unversioned_at(KL_HERE, __VA_ARGS__)
#define kl_file_open(...) kl_file_open_at(KL_HERE, __VA_ARGS__)
#define kl_file_open_bytes(...) kl_file_open_bytes_at(KL_HERE, __VA_ARGS__)
#define kl_file_tensor(...) kl_file_tensor_at(KL_HERE, __VA_ARGS__)
#define kl_file_data(...) kl_file_data_at(KL_HERE, __VA_ARGS__)
#define kl_file_write(...) kl_file_write_at(KL_HERE, __VA_ARGS__)
#define kl_model_open(...) kl_model_open_at(KL_HERE, __VA_ARGS__)
#define kl_model_call(...) kl_model_call_at(KL_HERE, __VA_ARGS__)
#define kl_model_save(...) kl_model_save_at(KL_HERE, __VA_ARGS__)
#define kl_model_read_tensor(...) kl_model_read_tensor_at(KL_HERE, __VA_ARGS__)
#define kl_snapshot_tensor(...) kl_snapshot_tensor_at(KL_HERE, __VA_ARGS__)
#define kl_snapshot_i64(...) kl_snapshot_i64_at(KL_HERE, __VA_ARGS__)
#define kl_snapshot_f64(...) kl_snapshot_f64_at(KL_HERE, __VA_ARGS__)
#define kl_snapshot_number(...) kl_snapshot_number_at(KL_HERE, __VA_ARGS__)
#define kl_snapshot_params(...) kl_snapshot_params_at(KL_HERE, __VA_ARGS__)
#define kl_snapshot_optimizer(...) kl_snapshot_optimizer_at(KL_HERE, __VA_ARGS__)
#define kl_snapshot_loader(...) kl_snapshot_loader_at(KL_HERE, __VA_ARGS__)
#define kl_snapshot_seeds(...) kl_snapshot_seeds_at(KL_HERE, __VA_ARGS__)
#define kl_snapshot_note(...) kl_snapshot_note_at(KL_HERE, __VA_ARGS__)
#define kl_snapshot_save(...) kl_snapshot_save_at(KL_HERE, __VA_ARGS__)
#define kl_snapshot_load(...) kl_snapshot_load_at(KL_HERE, __VA_ARGS__)
#define kl_snapshot_save_step(...) kl_snapshot_save_step_at(KL_HERE, __VA_ARGS__)
#define kl_snapshot_load_last(...) kl_snapshot_load_last_at(KL_HERE, __VA_ARGS__)
#define kl_dump(...) kl_dump_at(KL_HERE, __VA_ARGS__)
#define kl_fail(...) kl_fail_at(KL_HERE, __VA_ARGS__)
#define kl_trace_begin(...) kl_trace_begin_at(KL_HERE, __VA_ARGS__)
#define kl_trace_end() kl_trace_end_at(KL_HERE)
#define kl_trace_suspend() kl_trace_suspend_at(KL_HERE)
#define kl_trace_resume() kl_trace_resume_at(KL_HERE)
#define kl_keep(...) kl_keep_at(KL_HERE, __VA_ARGS__)
#define kl_assign(...) kl_assign_at(KL_HERE, __VA_ARGS__)
#define kl_release(...) kl_release_at(KL_HERE, __VA_ARGS__)
#define kl_scope_end() kl_scope_end_at(KL_HERE)
#define kl_set_name(...) kl_set_name_at(KL_HERE, __VA_ARGS__)
#define kl_name_begin(...) kl_name_begin_at(KL_HERE, __VA_ARGS__)
#define kl_name_end() kl_name_end_at(KL_HERE)
#define kl_print(...) kl_print_at(KL_HERE, __VA_ARGS__)
#define kl_assert(...) kl_assert_at(KL_HERE, __VA_ARGS__)
#define kl_requires_grad(...) kl_requires_grad_at(KL_HERE, __VA_ARGS__)
#define kl_grad(...) kl_grad_at(KL_HERE, __VA_ARGS__)
#define kl_grads(...) kl_grads_at(KL_HERE, __VA_ARGS__)
#define kl_detach(...) kl_detach_at(KL_HERE, __VA_ARGS__)
#define kl_no_grad_end() kl_no_grad_end_at(KL_HERE)
#define kl_read(...) kl_read_at(KL_HERE, __VA_ARGS__)
#define kl_item_f32(...) kl_item_f32_at(KL_HERE, __VA_ARGS__)
#define kl_item_f64(...) kl_item_f64_at(KL_HERE, __VA_ARGS__)
#define kl_item_i64(...) kl_item_i64_at(KL_HERE, __VA_ARGS__)
#define kl_blocked(...) kl_blocked_at(KL_HERE, __VA_ARGS__)
#define kl_complex(...) kl_complex_at(KL_HERE, __VA_ARGS__)
#define kl_real(...) kl_real_at(KL_HERE, __VA_ARGS__)
#define kl_imag(...) kl_imag_at(KL_HERE, __VA_ARGS__)
#define kl_conj(...) kl_conj_at(KL_HERE, __VA_ARGS__)
#define kl_angle(...) kl_angle_at(KL_HERE, __VA_ARGS__)
#define kl_named(...) kl_named_at(KL_HERE, __VA_ARGS__)
#define kl_nested(...) kl_nested_at(KL_HERE, __VA_ARGS__)
#define kl_nested_like(...) kl_nested_like_at(KL_HERE, __VA_ARGS__)
#define kl_to_nested(...) kl_to_nested_at(KL_HERE, __VA_ARGS__)
#define kl_nested_pad(...) kl_nested_pad_at(KL_HERE, __VA_ARGS__)
#define kl_nested_sum(...) kl_nested_sum_at(KL_HERE, __VA_ARGS__)
#define kl_nested_mean(...) kl_nested_mean_at(KL_HERE, __VA_ARGS__)
#define kl_nested_max(...) kl_nested_max_at(KL_HERE, __VA_ARGS__)
#define kl_nested_softmax(...) kl_nested_softmax_at(KL_HERE, __VA_ARGS__)
#define kl_nested_attention(...) kl_nested_attention_at(KL_HERE, __VA_ARGS__)
#define kl_to_quantized(...) kl_to_quantized_at(KL_HERE, __VA_ARGS__)
#define kl_quantized(...) kl_quantized_at(KL_HERE, __VA_ARGS__)
#define kl_observer_update(...) kl_observer_update_at(KL_HERE, __VA_ARGS__)
#define kl_observer_quantize(...) kl_observer_quantize_at(KL_HERE, __VA_ARGS__)
#define kl_sparse_coo(...) kl_sparse_coo_at(KL_HERE, __VA_ARGS__)
#define kl_sparse_csr(...) kl_sparse_csr_at(KL_HERE, __VA_ARGS__)
#define kl_to_sparse(...) kl_to_sparse_at(KL_HERE, __VA_ARGS__)
#define kl_sampled_matmul(...) kl_sampled_matmul_at(KL_HERE, __VA_ARGS__)
#define kl_relu(...) kl_relu_at(KL_HERE, __VA_ARGS__)
#define kl_sigmoid(...) kl_sigmoid_at(KL_HERE, __VA_ARGS__)
#define kl_silu(...) kl_silu_at(KL_HERE, __VA_ARGS__)
#define kl_gelu(...) kl_gelu_at(KL_HERE, __VA_ARGS__)
#define kl_softplus(...) kl_softplus_at(KL_HERE, __VA_ARGS__)
#define kl_mish(...) kl_mish_at(KL_HERE, __VA_ARGS__)
#define kl_gelu_erf(...) kl_gelu_erf_at(KL_HERE, __VA_ARGS__)
#define kl_log_sigmoid(...) kl_log_sigmoid_at(KL_HERE, __VA_ARGS__)
#define kl_softsign(...) kl_softsign_at(KL_HERE, __VA_ARGS__)
#define kl_selu(...) kl_selu_at(KL_HERE, __VA_ARGS__)
#define kl_celu(...) kl_celu_at(KL_HERE, __VA_ARGS__)
#define kl_hard_sigmoid(...) kl_hard_sigmoid_at(KL_HERE, __VA_ARGS__)
#define kl_hard_swish(...) kl_hard_swish_at(KL_HERE, __VA_ARGS__)
#define kl_leaky_relu(...) kl_leaky_relu_at(KL_HERE, __VA_ARGS__)
#define kl_elu(...) kl_elu_at(KL_HERE, __VA_ARGS__)
#define kl_clamp(...) kl_clamp_at(KL_HERE, __VA_ARGS__)
#define kl_dropout(...) kl_dropout_at(KL_HERE, __VA_ARGS__)
#define kl_dropout_seeded(...) kl_dropout_seeded_at(KL_HERE, __VA_ARGS__)
#define kl_softmax(...) kl_softmax_at(KL_HERE, __VA_ARGS__)
#define kl_log_softmax(...) kl_log_softmax_at(KL_HERE, __VA_ARGS__)
#define kl_logsumexp(...) kl_logsumexp_at(KL_HERE, __VA_ARGS__)
#define kl_var(...) kl_var_at(KL_HERE, __VA_ARGS__)
#define kl_std(...) kl_std_at(KL_HERE, __VA_ARGS__)
#define kl_norm(...) kl_norm_at(KL_HERE, __VA_ARGS__)
#define kl_layer_norm(...) kl_layer_norm_at(KL_HERE, __VA_ARGS__)
#define kl_rms_norm(...) kl_rms_norm_at(KL_HERE, __VA_ARGS__)
#define kl_group_norm(...) kl_group_norm_at(KL_HERE, __VA_ARGS__)
#define kl_batch_norm(...) kl_batch_norm_at(KL_HERE, __VA_ARGS__)
#define kl_embedding(...) kl_embedding_at(KL_HERE, __VA_ARGS__)
#define kl_linear(...) kl_linear_at(KL_HERE, __VA_ARGS__)
#define kl_einsum(...) kl_einsum_at(KL_HERE, __VA_ARGS__)
#define kl_attention(...) kl_attention_at(KL_HERE, __VA_ARGS__)
#define kl_conv(...) kl_conv_at(KL_HERE, __VA_ARGS__)
#define kl_conv_transpose(...) kl_conv_transpose_at(KL_HERE, __VA_ARGS__)
#define kl_sum_pool(...) kl_sum_pool_at(KL_HERE, __VA_ARGS__)
#define kl_avg_pool(...) kl_avg_pool_at(KL_HERE, __VA_ARGS__)
#define kl_max_pool(...) kl_max_pool_at(KL_HERE, __VA_ARGS__)
#define kl_min_pool(...) kl_min_pool_at(KL_HERE, __VA_ARGS__)
#define kl_one_hot(...) kl_one_hot_at(KL_HERE, __VA_ARGS__)
#define kl_cross_entropy(...) kl_cross_entropy_at(KL_HERE, __VA_ARGS__)
#define kl_nll_loss(...) kl_nll_loss_at(KL_HERE, __VA_ARGS__)
#define kl_mse_loss(...) kl_mse_loss_at(KL_HERE, __VA_ARGS__)
#define kl_l1_loss(...) kl_l1_loss_at(KL_HERE, __VA_ARGS__)
#define kl_huber_loss(...) kl_huber_loss_at(KL_HERE, __VA_ARGS__)
#define kl_smooth_l1_loss(...) kl_smooth_l1_loss_at(KL_HERE, __VA_ARGS__)
#define kl_binary_cross_entropy_with_logits(...) kl_binary_cross_entropy_with_logits_at(KL_HERE, __VA_ARGS__)
#define kl_binary_cross_entropy(...) kl_binary_cross_entropy_at(KL_HERE, __VA_ARGS__)
#define kl_hinge_loss(...) kl_hinge_loss_at(KL_HERE, __VA_ARGS__)
#define kl_divergence(...) kl_divergence_at(KL_HERE, __VA_ARGS__)
#define kl_input(...) kl_input_at(KL_HERE, __VA_ARGS__)
#define kl_wrap(...) kl_wrap_at(KL_HERE, __VA_ARGS__)
#define kl_zeros(...) kl_zeros_at(KL_HERE, __VA_ARGS__)
#define kl_ones(...) kl_ones_at(KL_HERE, __VA_ARGS__)
#define kl_full(...) kl_full_at(KL_HERE, __VA_ARGS__)
#define kl_scalar(...) kl_scalar_at(KL_HERE, __VA_ARGS__)
#define kl_const(...) kl_const_at(KL_HERE, __VA_ARGS__)
#define kl_arange(...) kl_arange_at(KL_HERE, __VA_ARGS__)
#define kl_eye(...) kl_eye_at(KL_HERE, __VA_ARGS__)
#define kl_linspace(...) kl_linspace_at(KL_HERE, __VA_ARGS__)
#define kl_iota(...) kl_iota_at(KL_HERE, __VA_ARGS__)
#define kl_random_bits(...) kl_random_bits_at(KL_HERE, __VA_ARGS__)
#define kl_rand(...) kl_rand_at(KL_HERE, __VA_ARGS__)
#define kl_randn(...) kl_randn_at(KL_HERE, __VA_ARGS__)
#define kl_random_seed(...) kl_random_seed_at(KL_HERE, __VA_ARGS__)
#define kl_random_split(...) kl_random_split_at(KL_HERE, __VA_ARGS__)
#define kl_random_fold_in(...) kl_random_fold_in_at(KL_HERE, __VA_ARGS__)
#define kl_random_bits_seeded(...) kl_random_bits_seeded_at(KL_HERE, __VA_ARGS__)
#define kl_rand_seeded(...) kl_rand_seeded_at(KL_HERE, __VA_ARGS__)
#define kl_randn_seeded(...) kl_randn_seeded_at(KL_HERE, __VA_ARGS__)
#define kl_categorical(...) kl_categorical_at(KL_HERE, __VA_ARGS__)
#define kl_neg(...) kl_neg_at(KL_HERE, __VA_ARGS__)
#define kl_abs(...) kl_abs_at(KL_HERE, __VA_ARGS__)
#define kl_exp(...) kl_exp_at(KL_HERE, __VA_ARGS__)
#define kl_log(...) kl_log_at(KL_HERE, __VA_ARGS__)
#define kl_exp2(...) kl_exp2_at(KL_HERE, __VA_ARGS__)
#define kl_expm1(...) kl_expm1_at(KL_HERE, __VA_ARGS__)
#define kl_log2(...) kl_log2_at(KL_HERE, __VA_ARGS__)
#define kl_log1p(...) kl_log1p_at(KL_HERE, __VA_ARGS__)
#define kl_tanh(...) kl_tanh_at(KL_HERE, __VA_ARGS__)
#define kl_sin(...) kl_sin_at(KL_HERE, __VA_ARGS__)
#define kl_cos(...) kl_cos_at(KL_HERE, __VA_ARGS__)
#define kl_tan(...) kl_tan_at(KL_HERE, __VA_ARGS__)
#define kl_asin(...) kl_asin_at(KL_HERE, __VA_ARGS__)
#define kl_acos(...) kl_acos_at(KL_HERE, __VA_ARGS__)
#define kl_atan(...) kl_atan_at(KL_HERE, __VA_ARGS__)
#define kl_sinh(...) kl_sinh_at(KL_HERE, __VA_ARGS__)
#define kl_cosh(...) kl_cosh_at(KL_HERE, __VA_ARGS__)
#define kl_asinh(...) kl_asinh_at(KL_HERE, __VA_ARGS__)
#define kl_acosh(...) kl_acosh_at(KL_HERE, __VA_ARGS__)
#define kl_atanh(...) kl_atanh_at(KL_HERE, __VA_ARGS__)
#define kl_erf(...) kl_erf_at(KL_HERE, __VA_ARGS__)
#define kl_erfc(...) kl_erfc_at(KL_HERE, __VA_ARGS__)
#define kl_sqrt(...) kl_sqrt_at(KL_HERE, __VA_ARGS__)
#define kl_rsqrt(...) kl_rsqrt_at(KL_HERE, __VA_ARGS__)
#define kl_recip(...) kl_recip_at(KL_HERE, __VA_ARGS__)
#define kl_floor(...) kl_floor_at(KL_HERE, __VA_ARGS__)
#define kl_ceil(...) kl_ceil_at(KL_HERE, __VA_ARGS__)
#define kl_round(...) kl_round_at(KL_HERE, __VA_ARGS__)
#define kl_trunc(...) kl_trunc_at(KL_HERE, __VA_ARGS__)
#define kl_sign(...) kl_sign_at(KL_HERE, __VA_ARGS__)
#define kl_is_nan(...) kl_is_nan_at(KL_HERE, __VA_ARGS__)
#define kl_is_finite(...) kl_is_finite_at(KL_HERE, __VA_ARGS__)
#define kl_is_inf(...) kl_is_inf_at(KL_HERE, __VA_ARGS__)
#define kl_cbrt(...) kl_cbrt_at(KL_HERE, __VA_ARGS__)
#define kl_log10(...) kl_log10_at(KL_HERE, __VA_ARGS__)
#define kl_lgamma(...) kl_lgamma_at(KL_HERE, __VA_ARGS__)
#define kl_digamma(...) kl_digamma_at(KL_HERE, __VA_ARGS__)
#define kl_erfinv(...) kl_erfinv_at(KL_HERE, __VA_ARGS__)
#define kl_popcount(...) kl_popcount_at(KL_HERE, __VA_ARGS__)
#define kl_clz(...) kl_clz_at(KL_HERE, __VA_ARGS__)
#define kl_not(...) kl_not_at(KL_HERE, __VA_ARGS__)
#define kl_square(...) kl_square_at(KL_HERE, __VA_ARGS__)
#define kl_add(...) kl_add_at(KL_HERE, __VA_ARGS__)
#define kl_sub(...) kl_sub_at(KL_HERE, __VA_ARGS__)
#define kl_mul(...) kl_mul_at(KL_HERE, __VA_ARGS__)
#define kl_div(...) kl_div_at(KL_HERE, __VA_ARGS__)
#define kl_maximum(...) kl_maximum_at(KL_HERE, __VA_ARGS__)
#define kl_minimum(...) kl_minimum_at(KL_HERE, __VA_ARGS__)
#define kl_pow(...) kl_pow_at(KL_HERE, __VA_ARGS__)
#define kl_atan2(...) kl_atan2_at(KL_HERE, __VA_ARGS__)
#define kl_hypot(...) kl_hypot_at(KL_HERE, __VA_ARGS__)
#define kl_copysign(...) kl_copysign_at(KL_HERE, __VA_ARGS__)
#define kl_and(...) kl_and_at(KL_HERE, __VA_ARGS__)
#define kl_or(...) kl_or_at(KL_HERE, __VA_ARGS__)
#define kl_xor(...) kl_xor_at(KL_HERE, __VA_ARGS__)
#define kl_shl(...) kl_shl_at(KL_HERE, __VA_ARGS__)
#define kl_shr(...) kl_shr_at(KL_HERE, __VA_ARGS__)
#define kl_shr_logical(...) kl_shr_logical_at(KL_HERE, __VA_ARGS__)
#define kl_rem(...) kl_rem_at(KL_HERE, __VA_ARGS__)
#define kl_div_trunc(...) kl_div_trunc_at(KL_HERE, __VA_ARGS__)
#define kl_div_floor(...) kl_div_floor_at(KL_HERE, __VA_ARGS__)
#define kl_fmod(...) kl_fmod_at(KL_HERE, __VA_ARGS__)
#define kl_mod(...) kl_mod_at(KL_HERE, __VA_ARGS__)
#define kl_logaddexp(...) kl_logaddexp_at(KL_HERE, __VA_ARGS__)
#define kl_nextafter(...) kl_nextafter_at(KL_HERE, __VA_ARGS__)
#define kl_eq(...) kl_eq_at(KL_HERE, __VA_ARGS__)
#define kl_ne(...) kl_ne_at(KL_HERE, __VA_ARGS__)
#define kl_lt(...) kl_lt_at(KL_HERE, __VA_ARGS__)
#define kl_le(...) kl_le_at(KL_HERE, __VA_ARGS__)
#define kl_gt(...) kl_gt_at(KL_HERE, __VA_ARGS__)
#define kl_ge(...) kl_ge_at(KL_HERE, __VA_ARGS__)
#define kl_fma(...) kl_fma_at(KL_HERE, __VA_ARGS__)
#define kl_where(...) kl_where_at(KL_HERE, __VA_ARGS__)
#define kl_add_scalar(...) kl_add_scalar_at(KL_HERE, __VA_ARGS__)
#define kl_sub_scalar(...) kl_sub_scalar_at(KL_HERE, __VA_ARGS__)
#define kl_mul_scalar(...) kl_mul_scalar_at(KL_HERE, __VA_ARGS__)
#define kl_div_scalar(...) kl_div_scalar_at(KL_HERE, __VA_ARGS__)
#define kl_maximum_scalar(...) kl_maximum_scalar_at(KL_HERE, __VA_ARGS__)
#define kl_minimum_scalar(...) kl_minimum_scalar_at(KL_HERE, __VA_ARGS__)
#define kl_powi(...) kl_powi_at(KL_HERE, __VA_ARGS__)
#define kl_pow_scalar(...) kl_pow_scalar_at(KL_HERE, __VA_ARGS__)
#define kl_lerp(...) kl_lerp_at(KL_HERE, __VA_ARGS__)
#define kl_masked_fill(...) kl_masked_fill_at(KL_HERE, __VA_ARGS__)
#define kl_is_close(...) kl_is_close_at(KL_HERE, __VA_ARGS__)
#define kl_all_close(...) kl_all_close_at(KL_HERE, __VA_ARGS__)
#define kl_to(...) kl_to_at(KL_HERE, __VA_ARGS__)
#define kl_cast(...) kl_cast_at(KL_HERE, __VA_ARGS__)
#define kl_quantize(...) kl_quantize_at(KL_HERE, __VA_ARGS__)
#define kl_dequantize(...) kl_dequantize_at(KL_HERE, __VA_ARGS__)
#define kl_reshape(...) kl_reshape_at(KL_HERE, __VA_ARGS__)
#define kl_permute(...) kl_permute_at(KL_HERE, __VA_ARGS__)
#define kl_transpose(...) kl_transpose_at(KL_HERE, __VA_ARGS__)
#define kl_expand(...) kl_expand_at(KL_HERE, __VA_ARGS__)
#define kl_unsqueeze(...) kl_unsqueeze_at(KL_HERE, __VA_ARGS__)
#define kl_squeeze(...) kl_squeeze_at(KL_HERE, __VA_ARGS__)
#define kl_slice(...) kl_slice_at(KL_HERE, __VA_ARGS__)
#define kl_narrow(...) kl_narrow_at(KL_HERE, __VA_ARGS__)
#define kl_window(...) kl_window_at(KL_HERE, __VA_ARGS__)
#define kl_flip(...) kl_flip_at(KL_HERE, __VA_ARGS__)
#define kl_pad(...) kl_pad_at(KL_HERE, __VA_ARGS__)
#define kl_concat(...) kl_concat_at(KL_HERE, __VA_ARGS__)
#define kl_stack(...) kl_stack_at(KL_HERE, __VA_ARGS__)
#define kl_tile(...) kl_tile_at(KL_HERE, __VA_ARGS__)
#define kl_repeat(...) kl_repeat_at(KL_HERE, __VA_ARGS__)
#define kl_roll(...) kl_roll_at(KL_HERE, __VA_ARGS__)
#define kl_triu(...) kl_triu_at(KL_HERE, __VA_ARGS__)
#define kl_tril(...) kl_tril_at(KL_HERE, __VA_ARGS__)
#define kl_split(...) kl_split_at(KL_HERE, __VA_ARGS__)
#define kl_take(...) kl_take_at(KL_HERE, __VA_ARGS__)
#define kl_index_add(...) kl_index_add_at(KL_HERE, __VA_ARGS__)
#define kl_index_max(...) kl_index_max_at(KL_HERE, __VA_ARGS__)
#define kl_index_min(...) kl_index_min_at(KL_HERE, __VA_ARGS__)
#define kl_index_copy(...) kl_index_copy_at(KL_HERE, __VA_ARGS__)
#define kl_take_along_axis(...) kl_take_along_axis_at(KL_HERE, __VA_ARGS__)
#define kl_add_along_axis(...) kl_add_along_axis_at(KL_HERE, __VA_ARGS__)
#define kl_put_along_axis(...) kl_put_along_axis_at(KL_HERE, __VA_ARGS__)
#define kl_argsort(...) kl_argsort_at(KL_HERE, __VA_ARGS__)
#define kl_sort(...) kl_sort_at(KL_HERE, __VA_ARGS__)
#define kl_topk(...) kl_topk_at(KL_HERE, __VA_ARGS__)
#define kl_dynamic_slice(...) kl_dynamic_slice_at(KL_HERE, __VA_ARGS__)
#define kl_dynamic_update(...) kl_dynamic_update_at(KL_HERE, __VA_ARGS__)
#define kl_bitcast(...) kl_bitcast_at(KL_HERE, __VA_ARGS__)
#define kl_sum(...) kl_sum_at(KL_HERE, __VA_ARGS__)
#define kl_max(...) kl_max_at(KL_HERE, __VA_ARGS__)
#define kl_min(...) kl_min_at(KL_HERE, __VA_ARGS__)
#define kl_prod(...) kl_prod_at(KL_HERE, __VA_ARGS__)
#define kl_reduce_and(...) kl_reduce_and_at(KL_HERE, __VA_ARGS__)
#define kl_reduce_or(...) kl_reduce_or_at(KL_HERE, __VA_ARGS__)
#define kl_reduce_xor(...) kl_reduce_xor_at(KL_HERE, __VA_ARGS__)
#define kl_p_norm(...) kl_p_norm_at(KL_HERE, __VA_ARGS__)
#define kl_any(...) kl_any_at(KL_HERE, __VA_ARGS__)
#define kl_all(...) kl_all_at(KL_HERE, __VA_ARGS__)
#define kl_mean(...) kl_mean_at(KL_HERE, __VA_ARGS__)
#define kl_sum_all(...) kl_sum_all_at(KL_HERE, __VA_ARGS__)
#define kl_argmax(...) kl_argmax_at(KL_HERE, __VA_ARGS__)
#define kl_argmin(...) kl_argmin_at(KL_HERE, __VA_ARGS__)
#define kl_cumsum(...) kl_cumsum_at(KL_HERE, __VA_ARGS__)
#define kl_cumprod(...) kl_cumprod_at(KL_HERE, __VA_ARGS__)
#define kl_cummax(...) kl_cummax_at(KL_HERE, __VA_ARGS__)
#define kl_cummin(...) kl_cummin_at(KL_HERE, __VA_ARGS__)
#define kl_cummax_indices(...) kl_cummax_indices_at(KL_HERE, __VA_ARGS__)
#define kl_cummin_indices(...) kl_cummin_indices_at(KL_HERE, __VA_ARGS__)
#define kl_recurrence(...) kl_recurrence_at(KL_HERE, __VA_ARGS__)
#define kl_logcumsumexp(...) kl_logcumsumexp_at(KL_HERE, __VA_ARGS__)
#define kl_matmul(...) kl_matmul_at(KL_HERE, __VA_ARGS__)
#define kl_dot_general(...) kl_dot_general_at(KL_HERE, __VA_ARGS__)
#define kl_attention_with(...) kl_attention_with_at(KL_HERE, __VA_ARGS__)
#define kl_cross_entropy_with(...) kl_cross_entropy_with_at(KL_HERE, __VA_ARGS__)
#define kl_nll_loss_with(...) kl_nll_loss_with_at(KL_HERE, __VA_ARGS__)
#define kl_diagonal(...) kl_diagonal_at(KL_HERE, __VA_ARGS__)
#define kl_diagonal_matrix(...) kl_diagonal_matrix_at(KL_HERE, __VA_ARGS__)
#define kl_nonzero(...) kl_nonzero_at(KL_HERE, __VA_ARGS__)
#define kl_unique(...) kl_unique_at(KL_HERE, __VA_ARGS__)
#define kl_resize(...) kl_resize_at(KL_HERE, __VA_ARGS__)
#define kl_grid_sample(...) kl_grid_sample_at(KL_HERE, __VA_ARGS__)
#define kl_roi_align(...) kl_roi_align_at(KL_HERE, __VA_ARGS__)
#define kl_adaptive_avg_pool(...) kl_adaptive_avg_pool_at(KL_HERE, __VA_ARGS__)
#define kl_adaptive_max_pool(...) kl_adaptive_max_pool_at(KL_HERE, __VA_ARGS__)
#define kl_max_pool_indices(...) kl_max_pool_indices_at(KL_HERE, __VA_ARGS__)
#define kl_max_unpool(...) kl_max_unpool_at(KL_HERE, __VA_ARGS__)
#define kl_gather_nd(...) kl_gather_nd_at(KL_HERE, __VA_ARGS__)
#define kl_scatter_nd(...) kl_scatter_nd_at(KL_HERE, __VA_ARGS__)
#define kl_take_along_axis_with(...) kl_take_along_axis_with_at(KL_HERE, __VA_ARGS__)
#define kl_put_along_axis_with(...) kl_put_along_axis_with_at(KL_HERE, __VA_ARGS__)
#define kl_index(...) kl_index_at(KL_HERE, __VA_ARGS__)
#define kl_index_put(...) kl_index_put_at(KL_HERE, __VA_ARGS__)
#define kl_pad_border(...) kl_pad_border_at(KL_HERE, __VA_ARGS__)
#define kl_cholesky(...) kl_cholesky_at(KL_HERE, __VA_ARGS__)
#define kl_triangular_solve(...) kl_triangular_solve_at(KL_HERE, __VA_ARGS__)
#define kl_qr(...) kl_qr_at(KL_HERE, __VA_ARGS__)
#define kl_solve(...) kl_solve_at(KL_HERE, __VA_ARGS__)
#define kl_inverse(...) kl_inverse_at(KL_HERE, __VA_ARGS__)
#define kl_det(...) kl_det_at(KL_HERE, __VA_ARGS__)
#define kl_fft(...) kl_fft_at(KL_HERE, __VA_ARGS__)
#define kl_rfft(...) kl_rfft_at(KL_HERE, __VA_ARGS__)
#define kl_irfft(...) kl_irfft_at(KL_HERE, __VA_ARGS__)
#define kl_recurrent(...) kl_recurrent_at(KL_HERE, __VA_ARGS__)
#define kl_float8_encode(...) kl_float8_encode_at(KL_HERE, __VA_ARGS__)
#define kl_float8_decode(...) kl_float8_decode_at(KL_HERE, __VA_ARGS__)
#define kl_int4_pack(...) kl_int4_pack_at(KL_HERE, __VA_ARGS__)
#define kl_int4_unpack(...) kl_int4_unpack_at(KL_HERE, __VA_ARGS__)
#define kl_symbol(...) kl_symbol_at(KL_HERE, __VA_ARGS__)
#define kl_symbol_multiple(...) kl_symbol_multiple_at(KL_HERE, __VA_ARGS__)
#define kl_input_symbolic(...) kl_input_symbolic_at(KL_HERE, __VA_ARGS__)
#define kl_length_add(...) kl_length_add_at(KL_HERE, __VA_ARGS__)
#define kl_length_sub(...) kl_length_sub_at(KL_HERE, __VA_ARGS__)
#define kl_length_mul(...) kl_length_mul_at(KL_HERE, __VA_ARGS__)
#define kl_length_div(...) kl_length_div_at(KL_HERE, __VA_ARGS__)
#define kl_length_scalar(...) kl_length_scalar_at(KL_HERE, __VA_ARGS__)
#define kl_trace_end_step(...) kl_trace_end_step_at(KL_HERE, __VA_ARGS__)
#define kl_step_run(...) kl_step_run_at(KL_HERE, __VA_ARGS__)
#define kl_dense(...) kl_dense_at(KL_HERE, __VA_ARGS__)
#define kl_layer_part(...) kl_layer_part_at(KL_HERE, __VA_ARGS__)
#define kl_comm_all_reduce(...) kl_comm_all_reduce_at(KL_HERE, __VA_ARGS__)
#define kl_comm_reduce_scatter(...) kl_comm_reduce_scatter_at(KL_HERE, __VA_ARGS__)
#define kl_comm_all_gather(...) kl_comm_all_gather_at(KL_HERE, __VA_ARGS__)
#define kl_comm_broadcast(...) kl_comm_broadcast_at(KL_HERE, __VA_ARGS__)
#define kl_comm_sync(...) kl_comm_sync_at(KL_HERE, __VA_ARGS__)
#define kl_comm_gradients(...) kl_comm_gradients_at(KL_HERE, __VA_ARGS__)
#define kl_comm_shards_new(...) kl_comm_shards_new_at(KL_HERE, __VA_ARGS__)
#define kl_comm_shards_new_params(...) kl_comm_shards_new_params_at(KL_HERE, __VA_ARGS__)
#define kl_comm_shards_step(...) kl_comm_shards_step_at(KL_HERE, __VA_ARGS__)
#define kl_comm_shards_reduce(...) kl_comm_shards_reduce_at(KL_HERE, __VA_ARGS__)
#define kl_comm_shards_clip_norm(...) kl_comm_shards_clip_norm_at(KL_HERE, __VA_ARGS__)
#define kl_comm_shards_gather(...) kl_comm_shards_gather_at(KL_HERE, __VA_ARGS__)
#define kl_comm_shards_reload(...) kl_comm_shards_reload_at(KL_HERE, __VA_ARGS__)
#define kl_nn_linear_init(...) kl_nn_linear_init_at(KL_HERE, __VA_ARGS__)
#define kl_nn_linear_forward(...) kl_nn_linear_forward_at(KL_HERE, __VA_ARGS__)
#define kl_nn_embedding_init(...) kl_nn_embedding_init_at(KL_HERE, __VA_ARGS__)
#define kl_nn_embedding_forward(...) kl_nn_embedding_forward_at(KL_HERE, __VA_ARGS__)
#define kl_nn_conv_init(...) kl_nn_conv_init_at(KL_HERE, __VA_ARGS__)
#define kl_nn_conv_forward(...) kl_nn_conv_forward_at(KL_HERE, __VA_ARGS__)
#define kl_nn_layer_norm_init(...) kl_nn_layer_norm_init_at(KL_HERE, __VA_ARGS__)
#define kl_nn_rms_norm_init(...) kl_nn_rms_norm_init_at(KL_HERE, __VA_ARGS__)
#define kl_nn_batch_norm_init(...) kl_nn_batch_norm_init_at(KL_HERE, __VA_ARGS__)
#define kl_nn_group_norm_init(...) kl_nn_group_norm_init_at(KL_HERE, __VA_ARGS__)
#define kl_nn_norm_forward(...) kl_nn_norm_forward_at(KL_HERE, __VA_ARGS__)
#define kl_nn_dropout(...) kl_nn_dropout_at(KL_HERE, __VA_ARGS__)
#define kl_nn_cache_init(...) kl_nn_cache_init_at(KL_HERE, __VA_ARGS__)
#define kl_nn_cache_advance(...) kl_nn_cache_advance_at(KL_HERE, __VA_ARGS__)
#define kl_nn_cache_reset(...) kl_nn_cache_reset_at(KL_HERE, __VA_ARGS__)
#define kl_nn_positions(...) kl_nn_positions_at(KL_HERE, __VA_ARGS__)
#define kl_nn_rotary(...) kl_nn_rotary_at(KL_HERE, __VA_ARGS__)
#define kl_nn_attention_init(...) kl_nn_attention_init_at(KL_HERE, __VA_ARGS__)
#define kl_nn_attention_forward(...) kl_nn_attention_forward_at(KL_HERE, __VA_ARGS__)
#define kl_nn_block_init(...) kl_nn_block_init_at(KL_HERE, __VA_ARGS__)
#define kl_nn_block_forward(...) kl_nn_block_forward_at(KL_HERE, __VA_ARGS__)
#define kl_nn_lstm_init(...) kl_nn_lstm_init_at(KL_HERE, __VA_ARGS__)
#define kl_nn_gru_init(...) kl_nn_gru_init_at(KL_HERE, __VA_ARGS__)
#define kl_nn_recurrent_forward(...) kl_nn_recurrent_forward_at(KL_HERE, __VA_ARGS__)
#define kl_sgd(...) kl_sgd_at(KL_HERE, __VA_ARGS__)
#define kl_adam(...) kl_adam_at(KL_HERE, __VA_ARGS__)
#define kl_lion(...) kl_lion_at(KL_HERE, __VA_ARGS__)
#define kl_rmsprop(...) kl_rmsprop_at(KL_HERE, __VA_ARGS__)
#define kl_adafactor(...) kl_adafactor_at(KL_HERE, __VA_ARGS__)
#define kl_optimizer_step(...) kl_optimizer_step_at(KL_HERE, __VA_ARGS__)
#define kl_optimizer_step_gradients(...) kl_optimizer_step_gradients_at(KL_HERE, __VA_ARGS__)
#define kl_clip_norm(...) kl_clip_norm_at(KL_HERE, __VA_ARGS__)
#define kl_clip_value(...) kl_clip_value_at(KL_HERE, __VA_ARGS__)
#define kl_accumulator_new(...) kl_accumulator_new_at(KL_HERE, __VA_ARGS__)
#define kl_accumulator_add(...) kl_accumulator_add_at(KL_HERE, __VA_ARGS__)
#define kl_accumulator_take(...) kl_accumulator_take_at(KL_HERE, __VA_ARGS__)
#define kl_ema_new(...) kl_ema_new_at(KL_HERE, __VA_ARGS__)
#define kl_ema_update(...) kl_ema_update_at(KL_HERE, __VA_ARGS__)
#define kl_ema_swap(...) kl_ema_swap_at(KL_HERE, __VA_ARGS__)
#define kl_init_values(...) kl_init_values_at(KL_HERE, __VA_ARGS__)
#define kl_params_new(...) kl_params_new_at(KL_HERE, __VA_ARGS__)
#define kl_params_make(...) kl_params_make_at(KL_HERE, __VA_ARGS__)
#define kl_params_add(...) kl_params_add_at(KL_HERE, __VA_ARGS__)
#define kl_params_add_buffer(...) kl_params_add_buffer_at(KL_HERE, __VA_ARGS__)
#define kl_params_find(...) kl_params_find_at(KL_HERE, __VA_ARGS__)
#define kl_params_reset(...) kl_params_reset_at(KL_HERE, __VA_ARGS__)
#define kl_metric_topk(...) kl_metric_topk_at(KL_HERE, __VA_ARGS__)
#define kl_metric_accuracy(...) kl_metric_accuracy_at(KL_HERE, __VA_ARGS__)
#define kl_metric_confusion(...) kl_metric_confusion_at(KL_HERE, __VA_ARGS__)
#define kl_vmap(...) kl_vmap_at(KL_HERE, __VA_ARGS__)
#define kl_autocast_begin(...) kl_autocast_begin_at(KL_HERE, __VA_ARGS__)
#define kl_autocast_end() kl_autocast_end_at(KL_HERE)
#define kl_loss_scale_init(...) kl_loss_scale_init_at(KL_HERE, __VA_ARGS__)
#define kl_loss_scale_up(...) kl_loss_scale_up_at(KL_HERE, __VA_ARGS__)
#define kl_loss_scale_down(...) kl_loss_scale_down_at(KL_HERE, __VA_ARGS__)
#define kl_loss_scale_finite(...) kl_loss_scale_finite_at(KL_HERE, __VA_ARGS__)
#define kl_loss_scale_update(...) kl_loss_scale_update_at(KL_HERE, __VA_ARGS__)
#define kl_tracer_run(...) kl_tracer_run_at(KL_HERE, __VA_ARGS__)
#endif
#endif
