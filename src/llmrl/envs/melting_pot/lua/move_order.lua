--[[ An avatar component that fixes the order of moves: the highest player index first.

Without it the engine visits the avatars in a fresh random order at every step. The
`Avatar` component registers its move with one priority for all players; this one lets
it register as before and adds the player's index to that priority.
]]

local args = require 'common.args'
local class = require 'common.class'

local meltingpot = 'meltingpot.lua.modules.'
local component = require(meltingpot .. 'component')
local component_registry = require(meltingpot .. 'component_registry')

local MoveOrder = class.Class(component.Component)

function MoveOrder:__init__(kwargs)
  kwargs = args.parse(kwargs, {
      {'name', args.default('MoveOrder')},
  })
  MoveOrder.Base.__init__(self, kwargs)
end

function MoveOrder:awake()
  local avatar = self.gameObject:getComponent('Avatar')
  local register = avatar.registerUpdaters
  avatar.registerUpdaters = function(self, registry)
    register(self, {
        registerUpdater = function(_, updater)
          updater.priority = updater.priority + self:getIndex()
          registry:registerUpdater(updater)
        end
    })
  end
end

component_registry.registerAllComponents{MoveOrder = MoveOrder}

return {MoveOrder = MoveOrder}
