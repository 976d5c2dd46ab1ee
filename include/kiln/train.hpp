/* Optimizers for C++17, over <kiln/train.h>. */
#ifndef KILN_TRAIN_HPP
#define KILN_TRAIN_HPP
#include <kiln/kiln.hpp>
#include <kiln/train.h>

namespace kiln
{

class optimizer
{ /* optim.h */
  public:
    static optimizer sgd(const std::vector<tensor> &param, kl_sgd_options o = {}, call_site at = call_site::here())
    {
        return optimizer(kl_sgd_at(&at, static_cast<int>(param.size()), ids(param).data(), &o), param);
    }
    static optimizer adam(const std::vector<tensor> &param, kl_adam_options o = {},
                          call_site at = call_site::here())
    {
        return optimizer(kl_adam_at(&at, static_cast<int>(param.size()), ids(param).data(), &o), param);
    }
    void step(const tensor &loss, double learning_rate, call_site at = call_site::here())
    {
        detail::check(kl_optimizer_step_at(&at, p_.get(), loss.get(), learning_rate));
    }
    kl_optimizer *get() const { return p_.get(); }

  private:
    struct end {
        void operator()(kl_optimizer *p) const { kl_optimizer_free(p); }
    };
    static std::vector<kl_tensor> ids(const std::vector<tensor> &param)
    {
        std::vector<kl_tensor> id;
        for (const tensor &t : param) id.push_back(t.get());
        return id;
    }
    optimizer(kl_optimizer *p, const std::vector<tensor> &param) : param_(param), p_(p)
    {
        if (!p) throw error(kl_last_error_code(), kl_last_error());
    }
    std::vector<tensor> param_; /* they outlive it */
    std::unique_ptr<kl_optimizer, end> p_;
};

} // namespace kiln
#endif
