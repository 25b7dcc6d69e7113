-- The commons_harvest level of Melting Pot, unchanged, with three more components to choose from.
require 'census'
require 'move_order'
require 'seen'
package.preload['components'] = function()
  return require 'meltingpot.lua.levels.commons_harvest.components'
end
return require 'meltingpot.lua.levels.commons_harvest.init'
