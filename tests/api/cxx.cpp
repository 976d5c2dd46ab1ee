/* <kiln/kiln.hpp>: shapes, ownership, operators, errors with the caller's line, traces, gradients, reads.  Built
 * and run by tests/cxx.sh with each C++ compiler that there is. */
#include <cmath>
#include <cstdio>
#include <cstring>
#include <kiln/train.hpp>
#include <thread>

static unsigned passed, failed;

#define CHECK(condition)                                                                                               \
    do {                                                                                                               \
        if (condition) {                                                                                               \
            passed++;                                                                                                  \
        } else {                                                                                                       \
            failed++;                                                                                                  \
            std::printf("FAIL %s:%d: %s\n", __FILE__, __LINE__, #condition);                                           \
        }                                                                                                              \
    } while (0)

using vec = std::vector<float>;
using kiln::tensor;

static vec f32(const tensor &t) { return t.read<float>(); }

/* The statement, all on this line, throws a kiln::error of the status whose text begins with this file and line and
 * says `says`. */
#define THROWS(statement, code, says)                                                                                  \
    do {                                                                                                               \
        std::string at_ = std::string(__FILE__) + ":" + std::to_string(__LINE__) + ": ", text_ = "nothing was thrown"; \
        kl_status status_ = KL_OK;                                                                                     \
        try {                                                                                                          \
            statement;                                                                                                 \
        } catch (const kiln::error &e_) {                                                                              \
            text_ = e_.what();                                                                                         \
            status_ = e_.status();                                                                                     \
        }                                                                                                              \
        bool ok_ =                                                                                                     \
            status_ == (code) && text_.compare(0, at_.size(), at_) == 0 && text_.find(says) != std::string::npos;      \
        if (!ok_) std::printf("%s (%d)\n", text_.c_str(), status_);                                                    \
        CHECK(ok_);                                                                                                    \
    } while (0)

static void test_shapes()
{
    std::size_t n = 2;
    long m = 3;
    using ints = std::vector<std::int64_t>;
    CHECK((kiln::zeros({2, 3}).shape() == ints{2, 3}));
    CHECK((kiln::ones({n, m, 1}).shape() == ints{2, 3, 1}));
    CHECK(kiln::full({}, 7).shape().empty() && kiln::full({}, 7).item<float>() == 7);
    CHECK((kiln::zeros(std::vector<int>{4, 5}).shape() == ints{4, 5}));
    CHECK((kiln::zeros({3}, KL_I32).shape() == ints{3}) && kiln::zeros({3}, KL_I32).dtype() == KL_I32);
    tensor a = kiln::arange(6);
    CHECK((kiln::reshape(a, {2, -1}).shape() == ints{2, 3}) && a.rank() == 1 && a.numel() == 6);
    CHECK((kiln::permute(kiln::reshape(a, {1, 2, 3}), {2, 0, 1}).shape() == ints{3, 1, 2}));
    CHECK((f32(kiln::slice(kiln::reshape(a, {2, 3}), {0, 1}, {2, 3})) == vec{1, 2, 4, 5}));
    CHECK((f32(kiln::sum(kiln::reshape(a, {2, 3}), {0})) == vec{3, 5, 7}) && kiln::sum(a).item<int>() == 15);
    CHECK((kiln::sum(kiln::reshape(a, {2, 3}), 1, true).shape() == ints{2, 1}));
    CHECK((f32(kiln::pad(a, {1}, {1}, 9)) == vec{9, 0, 1, 2, 3, 4, 5, 9}));
    THROWS(kiln::slice(kiln::reshape(a, {2, 3}), {1}), KL_ERR_ARGUMENT, "slice: start has 1 numbers");
    THROWS(kiln::pad(a, {1, 2}, {1}), KL_ERR_ARGUMENT, "pad: low has 2 numbers");
    THROWS(kiln::tile(a, {}), KL_ERR_ARGUMENT, "tile: times has 0 numbers");
    THROWS(kiln::reshape(a, {4, 4}), KL_ERR_SHAPE, "reshape");
    THROWS(kiln::zeros({2, -3}), KL_ERR_SHAPE, "zeros");
    kiln::conv_options same;
    same.low = same.high = {1, 1};
    tensor image = kiln::ones({1, 1, 3, 3}), filter = kiln::ones({1, 1, 3, 3});
    CHECK((f32(kiln::conv(image, filter, {}, same)) == vec{4, 6, 4, 6, 9, 6, 4, 6, 4}));
    same.low = {1};
    THROWS(kiln::conv(image, filter, {}, same), KL_ERR_ARGUMENT, "conv: low has 1 numbers");
    CHECK((f32(kiln::max_pool(kiln::reshape(a, {1, 1, 2, 3}), {2, 2})) == vec{4}));
    CHECK((f32(kiln::concat({a, kiln::ones({1})}, 0)) == vec{0, 1, 2, 3, 4, 5, 1}));
    std::vector<tensor> third = kiln::split(a, 0, 3), part = kiln::split(a, 0, {1, 5});
    CHECK(third.size() == 3 && (f32(third[2]) == vec{4, 5}) && part.size() == 2 && part[1].numel() == 5);
    auto [top, places] = kiln::topk(a, 2);
    CHECK((f32(top) == vec{5, 4}) && (places.read<std::int32_t>() == std::vector<std::int32_t>{5, 4}));
    CHECK((kiln::einsum("ij,jk->ik", {kiln::reshape(a, {2, 3}), kiln::ones({3, 1})}).shape() == ints{2, 1}));
}

static void test_reads()
{
    CHECK((kiln::input<float>({2, 2}, {1, 2, 3, 4}).read<float>() == vec{1, 2, 3, 4}));
    CHECK((kiln::input({3}, std::vector<std::int64_t>{1, -2, 3}).read<std::int64_t>() ==
           std::vector<std::int64_t>{1, -2, 3}));
    CHECK((kiln::input<float>({1}, {0}).read<float>() == vec{0}));
    std::vector<bool> b{true, false, true};
    CHECK(kiln::input({3}, b).read<bool>() == b);
    const double d[2] = {0.5, -1};
    CHECK((kiln::input({2}, d, 2).read<double>() == std::vector<double>{0.5, -1}));
    CHECK(kiln::input<float>({0, 2}, {}).read<float>().empty());
    CHECK(kiln::scalar(2.5).item<double>() == 2.5 && kiln::scalar(-3, KL_I64).item<int>() == -3);
    tensor x = kiln::ones({2});
    THROWS(x.read<double>(), KL_ERR_TYPE, "read: the tensor is f32, not f64");
    THROWS(x.item<float>(), KL_ERR_SHAPE, "item");
    THROWS(tensor().read<float>(), KL_ERR_HANDLE, "read");
    THROWS(kiln::input<float>({2, 2}, {1, 2, 3}), KL_ERR_SHAPE, "input: 3 elements for a shape of 4");
}

static bool live(kl_tensor id) { return kl_check(id) == KL_OK; }

static void test_ownership()
{
    kl_tensor id;
    {
        tensor a = kiln::ones({2});
        id = a.get();
        tensor copy = a;
        a = kiln::zeros({2}); /* another tensor: the old one is the copy's */
        CHECK(live(id) && copy.get().id == id.id && a.get().id != id.id);
        tensor moved = std::move(copy);
        CHECK(copy.empty() && moved.get().id == id.id); // NOLINT: what a moved-from tensor is
        moved = moved + 1.0;
        CHECK(!live(id));
        std::vector<tensor> many(3, a);
        id = a.get();
        a = tensor();
        CHECK(live(id) && many[2].get().id == id.id);
    }
    CHECK(!live(id));
    /* Copies are the same tensor: assignments are seen by all. */
    tensor w = kiln::ones({2}), alias = w;
    id = w.get();
    w += 2.0;
    w *= kiln::full({2}, 4);
    w -= alias;
    CHECK((f32(alias) == vec{0, 0}) && w.get().id == id.id);
    w.assign(kiln::full({2}, 3)) /= 2.0;
    CHECK((f32(alias) == vec{1.5, 1.5}));
    /* borrowed: not released */
    kl_tensor raw = kl_ones(kl_device_default(), KL_F32, 0, nullptr);
    {
        tensor t = kiln::borrow(raw);
    }
    CHECK(live(raw));
    {
        tensor t = kiln::own(raw);
    }
    CHECK(!live(raw));
    CHECK(tensor().empty() && tensor().get().id == 0 && tensor().rank() == -1);
    std::thread([](tensor t) { t = t + 1.0; }, std::move(w)).join();
    CHECK(!live(id) == alias.empty() && live(id));
}

static void test_trace()
{
    tensor w = kiln::full({2}, 2), kept, lost;
    kl_tensor inner;
    {
        kiln::trace t("cxx");
        tensor y = w * w;
        lost = y + 1.0;
        inner = (y + 2.0).keep().get(); /* its only owner goes at once */
        kept = (y + 3.0).keep();
        w += y;
        CHECK(kl_tracing());
        t.end();
    }
    CHECK(!kl_tracing() && !live(inner) && !live(lost.get()));
    CHECK((f32(kept) == vec{7, 7}) && (f32(w) == vec{6, 6}));
    THROWS(lost.read<float>(), KL_ERR_HANDLE, "was not kept");
    lost = tensor(); /* releases nothing, and says nothing */
    inner = kept.get();
    kept = tensor();
    CHECK(!live(inner));
    /* An exception drops the trace: w is as before, and the next trace works. */
    try {
        kiln::trace t("cxx");
        w += 1.0;
        kept = (w * 2.0).keep();
        kiln::matmul(w, kiln::ones({5}));
        failed++;
    } catch (const kiln::error &e) {
        CHECK(e.status() == KL_ERR_SHAPE && std::strstr(e.what(), "cxx.cpp:"));
    }
    CHECK(!kl_tracing() && (f32(w) == vec{6, 6}));
    kl_clear_error();
    kept = tensor();
    CHECK(kl_last_error_code() == KL_OK);
    /* A trace that fails at its end has thrown, and is over. */
    auto fails = [&] {
        kiln::trace t("cxx_assert");
        kept = (w + 1.0).keep();
        kl_assert((kiln::gt(w, kiln::full({2}, 100)).get()), "large");
        t.end();
    };
    kl_status status = KL_OK;
    try {
        fails();
    } catch (const kiln::error &e) {
        status = e.status();
    }
    CHECK(status != KL_OK && !kl_tracing());
    kept = tensor();
    {
        kiln::trace t("cxx_nested");
        THROWS(kiln::trace("second"), KL_ERR_TRACE, "already open");
        kl_status first = KL_OK;
        try {
            t.end();
        } catch (const kiln::error &e) {
            first = e.status(); /* a trace's first error is the trace's, as in C */
        }
        CHECK(first == KL_ERR_TRACE);
    }
    kiln::trace t("cxx_again");
    THROWS(w.read<double>(), KL_ERR_TYPE, "read");
    tensor sum = kiln::sum(w).keep();
    t.end();
    CHECK(sum.item<float>() == 12);
}

static void test_operators()
{
    tensor a = kiln::input<float>({3}, {1, 2, 4}), b = kiln::input<float>({3}, {2, 4, 8});
    CHECK((f32(a + b) == vec{3, 6, 12}) && (f32(b - a) == vec{1, 2, 4}) && (f32(a * b) == vec{2, 8, 32}));
    CHECK((f32(b / a) == vec{2, 2, 2}) && (f32(-a) == vec{-1, -2, -4}) && (f32(1 + a) == vec{2, 3, 5}));
    CHECK((f32(a - 1) == vec{0, 1, 3}) && (f32(1 - a) == vec{0, -1, -3}) && (f32(3.0f * a) == vec{3, 6, 12}));
    CHECK((f32(8 / a) == vec{8, 4, 2}) && (f32(a / 2) == vec{0.5, 1, 2}) &&
          (f32((a + b) * (a - b) / 2 + 1) == vec{-0.5, -5, -23}));
    CHECK((kiln::lt(a, kiln::full({3}, 3)).read<bool>() == std::vector<bool>{true, true, false}));
    tensor i = kiln::input<std::int32_t>({2}, {7, -7});
    CHECK((f32(kiln::cast(10 - i, KL_F32)) == vec{3, 17}));
    tensor c = kiln::ones({5});
    THROWS(a + c, KL_ERR_SHAPE, "add");
    THROWS(-tensor(), KL_ERR_HANDLE, "neg");
    THROWS(a += c, KL_ERR_SHAPE, "add");
    THROWS(a -= kiln::cast(a, KL_I32), KL_ERR_TYPE, "sub");
    THROWS(2.0 / tensor(), KL_ERR_TYPE, "scalar");
    THROWS(kiln::scalar(1) += a, KL_ERR_SHAPE, "assign");
    THROWS(a.assign(c), KL_ERR_SHAPE, "assign");
    THROWS(kiln::softmax(a, 3), KL_ERR_SHAPE, "softmax");
    THROWS(kiln::where(a, b, b), KL_ERR_TYPE, "where");
    THROWS(i.requires_grad(), KL_ERR_TYPE, "requires_grad");
    THROWS(tensor().keep(), KL_ERR_HANDLE, "keep");
    THROWS(kiln::argmax(a, 9), KL_ERR_SHAPE, "argmax");
    THROWS(kiln::dropout(a, 2, 1), KL_ERR_ARGUMENT, "dropout");
}

static void test_gradients()
{
    tensor x = kiln::input<float>({2}, {3, -1}), y = kiln::input<float>({2}, {2, 5});
    x.requires_grad();
    y.requires_grad();
    tensor loss = kiln::sum(x * x * y);
    CHECK((f32(kiln::grad(loss, x)) == vec{12, -10}));
    std::vector<tensor> g = kiln::gradients(loss, {x, y});
    CHECK(g.size() == 2 && (f32(g[1]) == vec{9, 1}));
    {
        kiln::no_grad off;
        CHECK(!kl_grad_enabled());
    }
    CHECK(kl_grad_enabled());
    CHECK((f32(kiln::grad(kiln::sum(x * kiln::detach(x)), x)) == vec{3, -1}));
    THROWS(kiln::grad(loss, tensor()), KL_ERR_HANDLE, "grad");
}

/* A regression with Adam and with a frozen step: converges, compiles once, and leaves nothing behind. */
static void test_training()
{
    kl_device dev = kl_device_default();
    tensor w = kiln::zeros({2, 1}), b = kiln::zeros({1});
    w.requires_grad();
    b.requires_grad();
    kiln::optimizer adam = kiln::optimizer::adam({w, b});
    vec x, y;
    for (int i = 0; i < 16; i++) {
        float u = static_cast<float>(i % 4) / 4, v = static_cast<float>(i) / 16;
        x.insert(x.end(), {u, v});
        y.push_back(2 * u - v + 0.5f);
    }
    double first = 0, last = 0;
    std::int64_t built = 0;
    for (int step = 0; step < 400; step++) {
        kiln::trace t("cxx_train");
        tensor loss = kiln::mse_loss(kiln::linear(kiln::input({16, 2}, x), w, b), kiln::input({16, 1}, y)).keep();
        adam.step(loss, 0.05);
        t.end();
        last = loss.item<double>();
        if (step == 0) first = last, built = kl_counter("graphs_built") + kl_counter("compiles");
    }
    CHECK(last < first / 1000);
    CHECK(kl_counter("graphs_built") + kl_counter("compiles") == built);
    THROWS(kiln::optimizer::sgd({w, w}), KL_ERR_ARGUMENT, "");
    kiln::trace t("cxx_frozen");
    tensor in = kiln::input({16, 2}, x);
    tensor y_kept = kiln::linear(in, w, b).keep();
    auto step = t.freeze({in});
    kl_tensor given = kl_ones(dev, KL_F32, 2, std::vector<std::int64_t>{16, 2}.data()), out[1];
    CHECK(kl_step_run(step.get(), 1, &given, 0, nullptr, 1, out) == KL_OK);
    tensor result = kiln::own(out[0]), one = kiln::own(given);
    CHECK(std::fabs(result.read<float>()[0] - 1.5f) < 0.05f);
    THROWS(t.freeze({in}), KL_ERR_TRACE, "");
}

int main()
{
    test_shapes();
    test_reads();
    test_ownership();
    test_trace();
    test_operators();
    test_gradients();
    test_training();
    kl_memory_use before = {}, after = {};
    kl_memory_used(kl_device_default(), &before);
    test_training();
    kl_memory_used(kl_device_default(), &after);
    CHECK(after.live == before.live);
    std::printf("%u passed, %u failed, 0 skipped\n", passed, failed);
    return failed != 0;
}
