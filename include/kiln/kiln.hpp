/* Kiln for C++17: owning handles, shapes as initializer lists, operators, exceptions.  Headers alone, over the C
 * interface of <kiln/kiln.h>, for g++ and clang++.
 *
 *     kiln::tensor w = kiln::randn({784, 10}, 42);
 *     w.requires_grad();
 *     for (int step = 0; step < steps; step++) {
 *         kiln::trace t("train_step");
 *         auto x = kiln::input({128, 784}, images), y = kiln::input({128}, labels); // vectors of float, int32_t
 *         auto loss = kiln::cross_entropy(kiln::matmul(x, w), y).keep();
 *         w -= kiln::grad(loss, w) * learning_rate;
 *         t.end();
 *         std::printf("%f\n", loss.item<float>());
 *     }
 *
 * What a function does, its shapes, dtypes and errors stand at its C namesake: kiln::conv at kl_conv (nn.h).
 * <kiln/ops/ops.hpp>, included below, has those of ops.h and nn.h; <kiln/train.hpp> has optimizers.  All else of the C
 * interface is used with t.get() and kiln::own:
 *     kiln::tensor s = kiln::own(kl_sampled_matmul(a.get(), b.get(), pattern.get()));
 *
 * Ownership is that of C.  A kiln::tensor made outside of a trace is released when its last copy goes.  One made
 * in a trace is a temporary of the trace and ends with it, unless keep() was called: then it is a value, released
 * when its last copy goes, also if that is before the trace ends.  Copies are the same tensor, as copies of a
 * kl_tensor are: assign() and += on one are seen by all.  `a = b` makes a another name of b's tensor; a parameter is
 * updated by assign(), +=, -=, *=, /= (kl_assign).
 *
 * Errors are kiln::error, thrown by the call that fails, also in a trace: its text names the caller's file and
 * line.
 *
 * No operator compares: lt, eq and the like give a bool tensor, and an == that is no bool would mislead what
 * expects one. */
#ifndef KILN_KILN_HPP
#define KILN_KILN_HPP
#include <cstddef>
#include <cstdint>
#include <kiln/kiln.h>
#include <memory>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace kiln
{

/* what(): "file:line: op: what is wrong", as kl_last_error. */
class error : public std::runtime_error
{
  public:
    error(kl_status status, const std::string &text) : std::runtime_error(text), status_(status) {}
    kl_status status() const noexcept { return status_; }

  private:
    kl_status status_;
};

/* Where a call stands: the last parameter of functions, filled in by its default at the caller's line. */
struct call_site : kl_site {
    constexpr call_site(const char *file_, int line_, const char *func_) : kl_site{file_, line_, func_} {}
    static constexpr call_site here(const char *file_ = __builtin_FILE(), int line_ = __builtin_LINE(),
                                    const char *func_ = __builtin_FUNCTION())
    {
        return {file_, line_, func_};
    }
};

/* At most KL_MAX_RANK integers: {2, 3}, of any integer types, or a vector. */
template <class T> class list
{
  public:
    list() = default;
    template <class... I, class = std::enable_if_t<(sizeof...(I) > 0) && (std::is_integral_v<I> && ...)>>
    list(I... v) : v_{static_cast<T>(v)...}, n_(static_cast<int>(sizeof...(I)))
    {
        static_assert(sizeof...(I) <= KL_MAX_RANK, "a tensor has at most KL_MAX_RANK dimensions");
    }
    template <class I, class = std::enable_if_t<std::is_integral_v<I>>> list(const std::vector<I> &v)
    {
        if (v.size() > KL_MAX_RANK)
            throw error(KL_ERR_SHAPE, "a list of " + std::to_string(v.size()) + " numbers: there are at most " +
                                          std::to_string(KL_MAX_RANK) + " dimensions");
        for (I i : v) v_[n_++] = static_cast<T>(i);
    }
    int size() const { return n_; }
    const T *data() const { return v_; }
    const T *or_null() const { return n_ ? v_ : nullptr; } /* an empty list is C's NULL */

  private:
    T v_[KL_MAX_RANK] = {};
    int n_ = 0;
};
using shape = list<std::int64_t>;
using axes = list<int>;

/* The dtype whose elements are a T in memory.  Halfs have no type here: cast to KL_F32. */
template <class T> struct dtype_of;
template <> struct dtype_of<bool> {
    static constexpr kl_dtype value = KL_BOOL;
};
template <> struct dtype_of<std::uint8_t> {
    static constexpr kl_dtype value = KL_U8;
};
template <> struct dtype_of<std::uint16_t> {
    static constexpr kl_dtype value = KL_U16;
};
template <> struct dtype_of<std::uint32_t> {
    static constexpr kl_dtype value = KL_U32;
};
template <> struct dtype_of<std::uint64_t> {
    static constexpr kl_dtype value = KL_U64;
};
template <> struct dtype_of<std::int8_t> {
    static constexpr kl_dtype value = KL_I8;
};
template <> struct dtype_of<std::int16_t> {
    static constexpr kl_dtype value = KL_I16;
};
template <> struct dtype_of<std::int32_t> {
    static constexpr kl_dtype value = KL_I32;
};
template <> struct dtype_of<std::int64_t> {
    static constexpr kl_dtype value = KL_I64;
};
template <> struct dtype_of<float> {
    static constexpr kl_dtype value = KL_F32;
};
template <> struct dtype_of<double> {
    static constexpr kl_dtype value = KL_F64;
};

namespace detail
{

inline void check(kl_status status)
{
    if (status != KL_OK) throw error(status, kl_last_error());
}

[[noreturn]] inline void fail(const call_site &at, kl_status status, const std::string &text)
{
    throw error(status, std::string(at.file) + ":" + std::to_string(at.line) + ": " + text);
}

struct handle {
    kl_tensor id;
    bool owned; /* false: a temporary of a trace, or somebody else's */
    handle(kl_tensor id_, bool owned_) : id(id_), owned(owned_) {}
    handle(const handle &) = delete;
    handle &operator=(const handle &) = delete;
    ~handle()
    {
        if (owned && kl_check(id) != KL_ERR_HANDLE) /* a trace that failed has ended what it was to keep */
            kl_release_at(nullptr, id);
    }
};

} // namespace detail

class tensor
{
  public:
    tensor() = default; /* kl_none */

    /* A new handle that a C function has returned.  [throws what made it poison] */
    static tensor own(kl_tensor id)
    {
        if (kl_check(id) != KL_OK) {
            std::string text = kl_last_error();
            kl_status status = kl_last_error_code();
            kl_release_at(nullptr, id);
            throw error(status != KL_OK ? status : KL_ERR_HANDLE, text);
        }
        return tensor(id, !kl_tracing());
    }
    /* A handle that stays somebody else's: an operand of a kl_region_fn. */
    static tensor borrow(kl_tensor id) { return tensor(id, false); }

    kl_tensor get() const { return handle_ ? handle_->id : kl_none; }
    bool empty() const { return !handle_; }

    std::vector<std::int64_t> shape() const
    {
        std::int64_t d[KL_MAX_RANK];
        int n = kl_shape(get(), d);
        return std::vector<std::int64_t>(d, d + (n > 0 ? n : 0));
    }
    int rank() const { return kl_rank(get()); }
    std::int64_t numel() const { return kl_numel(get()); }
    kl_dtype dtype() const { return kl_dtype_of(get()); }
    kl_device device() const { return kl_device_of(get()); }

    /* Lives on after the trace. */
    const tensor &keep(call_site at = call_site::here()) const
    {
        kl_tensor kept = kl_keep_at(&at, get());
        if (kl_check(kept) != KL_OK) throw error(kl_last_error_code(), kl_last_error());
        handle_->owned = true;
        return *this;
    }
    const tensor &assign(const tensor &value, call_site at = call_site::here()) const
    {
        detail::check(kl_assign_at(&at, get(), value.get()));
        return *this;
    }
    const tensor &requires_grad(call_site at = call_site::here()) const
    {
        detail::check(kl_requires_grad_at(&at, get()));
        return *this;
    }
    const tensor &name(const char *text, call_site at = call_site::here()) const
    {
        detail::check(kl_set_name_at(&at, get(), text));
        return *this;
    }
    const tensor &print(const char *label = nullptr, call_site at = call_site::here()) const
    {
        own(kl_print_at(&at, get(), label));
        return *this;
    }

    /* All elements, row-major.  [TYPE: T is not the tensor's dtype] */
    template <class T> std::vector<T> read(call_site at = call_site::here()) const
    {
        if (!empty() && dtype() != KL_DTYPE_COUNT && dtype() != dtype_of<T>::value)
            detail::fail(at, KL_ERR_TYPE,
                         std::string("read: the tensor is ") + kl_dtype_name(dtype()) + ", not " +
                             kl_dtype_name(dtype_of<T>::value));
        std::int64_t n = numel();
        if constexpr (std::is_same_v<T, bool>) { /* std::vector<bool> has no array of bytes */
            std::vector<unsigned char> byte(static_cast<std::size_t>(n > 0 ? n : 0));
            detail::check(kl_read_at(&at, get(), byte.data(), byte.size()));
            return std::vector<bool>(byte.begin(), byte.end());
        } else {
            std::vector<T> out(static_cast<std::size_t>(n > 0 ? n : 0));
            detail::check(kl_read_at(&at, get(), out.data(), out.size() * sizeof(T)));
            return out;
        }
    }
    /* The only element, converted. */
    template <class T> T item(call_site at = call_site::here()) const
    {
        static_assert(std::is_arithmetic_v<T>, "item: a number");
        kl_clear_error();
        T v;
        if constexpr (std::is_integral_v<T>)
            v = static_cast<T>(kl_item_i64_at(&at, get()));
        else
            v = static_cast<T>(kl_item_f64_at(&at, get()));
        detail::check(kl_last_error_code());
        return v;
    }

  private:
    tensor(kl_tensor id, bool owned) : handle_(std::make_shared<detail::handle>(id, owned)) {}
    std::shared_ptr<detail::handle> handle_;
};

inline tensor own(kl_tensor id) { return tensor::own(id); }
inline tensor borrow(kl_tensor id) { return tensor::borrow(id); }

/* ---- devices ---- */

inline kl_device device(const char *name)
{
    kl_device d = kl_device_named(name);
    if (!d.id) throw error(kl_last_error_code(), kl_last_error());
    return d;
}
inline kl_device default_device() { return kl_device_default(); }

/* ---- traces ---- */

/* A trace of this thread from here to end().  Without end(), as after an exception, it is dropped: nothing runs
 * and every value is as before. */
class trace
{
  public:
    explicit trace(const char *name, call_site at = call_site::here()) { detail::check(kl_trace_begin_at(&at, name)); }
    trace(const trace &) = delete;
    trace &operator=(const trace &) = delete;
    ~trace()
    {
        if (open_) kl_trace_abandon();
    }
    void end(call_site at = call_site::here())
    {
        open_ = false;
        detail::check(kl_trace_end_at(&at));
    }
    /* Ends it as a frozen step (step.h), which std::unique_ptr frees. */
    struct step_free {
        void operator()(kl_step *s) const { kl_step_free(s); }
    };
    std::unique_ptr<kl_step, step_free> freeze(const std::vector<tensor> &inputs, call_site at = call_site::here())
    {
        std::vector<kl_tensor> id;
        for (const tensor &t : inputs) id.push_back(t.get());
        open_ = false;
        std::unique_ptr<kl_step, step_free> s(kl_trace_end_step_at(&at, static_cast<int>(id.size()), id.data()));
        if (!s) throw error(kl_last_error_code(), kl_last_error());
        return s;
    }

  private:
    bool open_ = true;
};

/* Between its constructor and destructor gradients flow through nothing that this thread records. */
class no_grad
{
  public:
    no_grad() { detail::check(kl_no_grad_begin()); }
    no_grad(const no_grad &) = delete;
    no_grad &operator=(const no_grad &) = delete;
    ~no_grad() { kl_no_grad_end_at(nullptr); }
};

/* ---- gradients ---- */

inline tensor grad(const tensor &loss, const tensor &wrt, call_site at = call_site::here())
{
    return own(kl_grad_at(&at, loss.get(), wrt.get()));
}
inline std::vector<tensor> gradients(const tensor &loss, const std::vector<tensor> &wrt,
                                     call_site at = call_site::here())
{
    std::vector<tensor> out;
    for (const tensor &t : wrt) out.push_back(grad(loss, t, at));
    return out;
}
inline tensor detach(const tensor &a, call_site at = call_site::here()) { return own(kl_detach_at(&at, a.get())); }

/* ---- operators: broadcast; a number is one of this run ---- */

/* A tensor beside an operator, and the line of that. */
class operand
{
  public:
    operand(const tensor &t, call_site at = call_site::here()) : t_(t), at_(at) {}
    kl_tensor get() const { return t_.get(); }
    const kl_site *at() const { return &at_; }
    const tensor &assign(const tensor &value) const { return t_.assign(value, at_); }
    /* The number as a tensor [] like this one. */
    tensor number(double v) const { return own(kl_scalar_at(&at_, t_.device(), t_.dtype(), v)); }

  private:
    const tensor &t_;
    call_site at_;
};

inline tensor operator+(const operand &a, const operand &b) { return own(kl_add_at(a.at(), a.get(), b.get())); }
inline tensor operator-(const operand &a, const operand &b) { return own(kl_sub_at(a.at(), a.get(), b.get())); }
inline tensor operator*(const operand &a, const operand &b) { return own(kl_mul_at(a.at(), a.get(), b.get())); }
inline tensor operator/(const operand &a, const operand &b) { return own(kl_div_at(a.at(), a.get(), b.get())); }
inline tensor operator+(const operand &a, double b) { return own(kl_add_scalar_at(a.at(), a.get(), b)); }
inline tensor operator-(const operand &a, double b) { return own(kl_sub_scalar_at(a.at(), a.get(), b)); }
inline tensor operator*(const operand &a, double b) { return own(kl_mul_scalar_at(a.at(), a.get(), b)); }
inline tensor operator/(const operand &a, double b) { return own(kl_div_scalar_at(a.at(), a.get(), b)); }
inline tensor operator+(double a, const operand &b) { return b + a; }
inline tensor operator-(double a, const operand &b) { return own(kl_sub_at(b.at(), b.number(a).get(), b.get())); }
inline tensor operator*(double a, const operand &b) { return b * a; }
inline tensor operator/(double a, const operand &b) { return own(kl_div_at(b.at(), b.number(a).get(), b.get())); }
inline tensor operator-(const operand &a) { return own(kl_neg_at(a.at(), a.get())); }

/* kl_assign of the result: a parameter is updated, and all copies of the handle see it. */
inline const tensor &operator+=(const operand &a, const operand &b) { return a.assign(a + b); }
inline const tensor &operator-=(const operand &a, const operand &b) { return a.assign(a - b); }
inline const tensor &operator*=(const operand &a, const operand &b) { return a.assign(a * b); }
inline const tensor &operator/=(const operand &a, const operand &b) { return a.assign(a / b); }
inline const tensor &operator+=(const operand &a, double b) { return a.assign(a + b); }
inline const tensor &operator-=(const operand &a, double b) { return a.assign(a - b); }
inline const tensor &operator*=(const operand &a, double b) { return a.assign(a * b); }
inline const tensor &operator/=(const operand &a, double b) { return a.assign(a / b); }

} // namespace kiln

#include <kiln/ops/ops.hpp>
#endif
