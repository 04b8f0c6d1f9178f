// HostOperation: what the backends in host memory have in common on a timeline. Their operations end in other
// threads than the rank's, which learns of it when it waits.
#pragma once

#include "comm/communicator.hpp"

namespace weft {

class HostOperation : public Operation {
 public:
  using Time = DeviceTools::HostTime;
  // The rank starts it now. `call`: "all_reduce". `bytes`: that this rank sends, or where it sends none
  // receives.
  void started(const Lane& lane, const Communicator& group, const char* call, std::uint64_t bytes);
  std::string name() const override;

 protected:
  // It has been waited for, and was done at that time.
  void ended(const Lane& lane, Time when) const;

 private:
  const Communicator* group_ = nullptr;
  const char* call_ = "";
  std::uint64_t bytes_ = 0;
  Time start_{};  // zero: not traced
};

}  // namespace weft
